/** A JSON value as a tree that opens and closes, exactly as it is stored. Large values come in parts. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { harmless, type Json, parseJson } from "../lib/json.ts";

const CHILDREN = 100;
const STRING_CHARS = 2000;
const OPEN_DEPTH = 2;

export function JsonView({ text }: { text: string }): JSX.Element {
  const value = useMemo(() => {
    try {
      return parseJson(text);
    } catch {
      return null;
    }
  }, [text]);
  if (value === null) return <pre class="json">{harmless(text.slice(0, STRING_CHARS))}</pre>;
  return (
    <div class="json">
      <Node value={value} depth={0} />
    </div>
  );
}

function Node({ name, value, depth }: { name?: string; value: Json; depth: number }): JSX.Element {
  const [open, setOpen] = useState(depth < OPEN_DEPTH);
  const [many, setMany] = useState(CHILDREN);
  const label = name === undefined ? null : (
    <>
      <span class="j-key">{harmless(name)}</span>
      <span class="j-dim">: </span>
    </>
  );
  if (value.kind !== "object" && value.kind !== "array") {
    return (
      <div class="j-line">
        {label}
        <Scalar value={value} />
      </div>
    );
  }
  const children: [string, Json][] = value.kind === "object" ? value.entries : value.items.map((item, index) => [String(index), item]);
  const [left, right] = value.kind === "object" ? ["{", "}"] : ["[", "]"];
  if (!children.length)
    return (
      <div class="j-line">
        {label}
        <span class="j-dim">
          {left}
          {right}
        </span>
      </div>
    );
  return (
    <div>
      <button type="button" class="j-line j-fold" aria-expanded={open} onClick={() => setOpen(!open)}>
        {label}
        <span class="j-dim">
          {left}
          {!open && ` ${children.length} ${value.kind === "object" ? (children.length === 1 ? "key" : "keys") : children.length === 1 ? "item" : "items"} ${right}`}
        </span>
      </button>
      {open && (
        <>
          <div class="j-inner">
            {children.slice(0, many).map(([key, inner], index) => (
              <Node key={index} name={key} value={inner} depth={depth + 1} />
            ))}
            {children.length > many && (
              <button type="button" class="j-line j-more" onClick={() => setMany(many + CHILDREN)}>
                {children.length - many} more
              </button>
            )}
          </div>
          <div class="j-line j-dim">{right}</div>
        </>
      )}
    </div>
  );
}

function Scalar({ value }: { value: Json }): JSX.Element {
  const [whole, setWhole] = useState(false);
  if (value.kind === "number") return <span class="j-number">{value.text}</span>;
  if (value.kind === "bool") return <span class="j-word">{String(value.value)}</span>;
  if (value.kind !== "string") return <span class="j-word">null</span>;
  const text = JSON.stringify(value.value);
  const cut = !whole && text.length > STRING_CHARS;
  return (
    <>
      <span class="j-string">{harmless(cut ? text.slice(0, STRING_CHARS) : text)}</span>
      {cut && (
        <button type="button" class="j-more" onClick={() => setWhole(true)}>
          … show all {text.length.toLocaleString("en")} characters
        </button>
      )}
    </>
  );
}
