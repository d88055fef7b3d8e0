/**
 * JSON without loss. A browser's parser rounds numbers beyond 2^53 and forgets how they were spelled; the server stores
 * payloads byte for byte, so the console shows them so. Numbers keep their text, duplicate keys and their order stay.
 */

export type Json =
  | { kind: "null" }
  | { kind: "bool"; value: boolean }
  | { kind: "number"; text: string }
  | { kind: "string"; value: string }
  | { kind: "array"; items: Json[] }
  | { kind: "object"; entries: [string, Json][] };

const WS = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const LITERAL = /true|false|null/y;

export class JsonError extends Error {
  constructor(
    message: string,
    readonly at: number,
  ) {
    super(message);
  }
}

/** A cursor over a JSON text. `value` builds a tree; `skip` only finds where a value ends, which is most of the work. */
class Scanner {
  at = 0;
  constructor(readonly text: string) {}

  fail(wanted: string): never {
    const found = this.at >= this.text.length ? "the end" : JSON.stringify(this.text[this.at]);
    throw new JsonError(`${wanted} expected, ${found} found`, this.at);
  }

  space(): void {
    const code = this.text.charCodeAt(this.at);
    if (code > 32) return;
    WS.lastIndex = this.at;
    WS.exec(this.text);
    this.at = WS.lastIndex;
  }

  private match(pattern: RegExp): string | null {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found === null) return null;
    this.at = pattern.lastIndex;
    return found[0];
  }

  string(): string {
    const start = this.at;
    this.skipString();
    const raw = this.text.slice(start, this.at);
    if (!raw.includes("\\")) return raw.slice(1, -1);
    return JSON.parse(raw) as string;
  }

  skipString(): void {
    if (this.text[this.at] !== '"') this.fail("a string");
    let at = this.at + 1;
    for (;;) {
      const end = this.text.indexOf('"', at);
      if (end < 0) {
        this.at = this.text.length;
        this.fail('a closing "');
      }
      let slashes = 0;
      while (this.text.charCodeAt(end - 1 - slashes) === 92) slashes += 1;
      at = end + 1;
      if (slashes % 2 === 0) break;
    }
    this.at = at;
  }

  /** Trusts that the text is well-formed, as what the server sends is. */
  skip(): void {
    this.space();
    const first = this.text.charCodeAt(this.at);
    if (first === 34) return this.skipString();
    if (first !== 123 && first !== 91) {
      if (this.match(NUMBER) === null && this.match(LITERAL) === null) this.fail("a value");
      return;
    }
    let depth = 0;
    for (;;) {
      const code = this.text.charCodeAt(this.at);
      if (code === 34) this.skipString();
      else {
        if (code === 123 || code === 91) depth += 1;
        else if (code === 125 || code === 93) depth -= 1;
        else if (code !== code) this.fail("a closing bracket");
        this.at += 1;
        if (depth === 0) return;
      }
    }
  }

  raw(): string {
    this.space();
    const start = this.at;
    this.skip();
    return this.text.slice(start, this.at);
  }

  members(each: (key: string) => void): void {
    this.at += 1;
    this.space();
    if (this.text[this.at] === "}") {
      this.at += 1;
      return;
    }
    for (;;) {
      this.space();
      const key = this.string();
      this.space();
      if (this.text[this.at] !== ":") this.fail("a colon");
      this.at += 1;
      each(key);
      if (this.closed("}")) return;
    }
  }

  items(each: () => void): void {
    this.at += 1;
    this.space();
    if (this.text[this.at] === "]") {
      this.at += 1;
      return;
    }
    for (;;) {
      each();
      if (this.closed("]")) return;
    }
  }

  private closed(bracket: string): boolean {
    this.space();
    const next = this.text[this.at];
    if (next !== "," && next !== bracket) this.fail(`a comma or ${bracket}`);
    this.at += 1;
    return next === bracket;
  }

  value(): Json {
    this.space();
    const first = this.text[this.at];
    if (first === '"') return { kind: "string", value: this.string() };
    if (first === "{") {
      const entries: [string, Json][] = [];
      this.members((key) => entries.push([key, this.value()]));
      return { kind: "object", entries };
    }
    if (first === "[") {
      const items: Json[] = [];
      this.items(() => items.push(this.value()));
      return { kind: "array", items };
    }
    const number = this.match(NUMBER);
    if (number !== null) return { kind: "number", text: number };
    const literal = this.match(LITERAL);
    if (literal === null) this.fail("a value");
    return literal === "null" ? { kind: "null" } : { kind: "bool", value: literal === "true" };
  }
}

/** The tree of one value. Raises JsonError with the place of the fault. */
export function parseJson(text: string): Json {
  const scanner = new Scanner(text);
  const value = scanner.value();
  scanner.space();
  if (scanner.at < text.length) scanner.fail("the end");
  return value;
}

/** Is it JSON that the server would take? The sentence that says why not, or null. */
export function jsonProblem(text: string): string | null {
  try {
    parseJson(text);
    JSON.parse(text);
    return null;
  } catch (error) {
    if (error instanceof JsonError) {
      const before = text.slice(0, error.at).split("\n");
      return `line ${before.length}, column ${(before.at(-1) ?? "").length + 1}: ${error.message}`;
    }
    return (error as Error).message;
  }
}

export class Raw {
  constructor(readonly text: string) {}
}

/**
 * An answer of the server as plain values, with the members named `data`, `meta` and `payload` kept as `Raw` text: they are the
 * user's, and are looked into only when somebody looks at them.
 */
export function parseAnswer(text: string): unknown {
  const scanner = new Scanner(text);
  const read = (): unknown => {
    scanner.space();
    const first = scanner.text[scanner.at];
    if (first === "{") {
      const made = Object.create(null) as Record<string, unknown>; // a key may be __proto__
      scanner.members((key) => {
        made[key] = key === "data" || key === "meta" || key === "payload" ? new Raw(scanner.raw()) : read();
      });
      return made;
    }
    if (first === "[") {
      const made: unknown[] = [];
      scanner.items(() => made.push(read()));
      return made;
    }
    if (first === '"') return scanner.string();
    return JSON.parse(scanner.raw());
  };
  return read();
}

export const PREVIEW_CHARS = 400;

/** Text for one line: what is long is cut, and what would change the direction or the line is shown as its code. */
export function preview(text: string, chars = PREVIEW_CHARS): string {
  const cut = text.length > chars ? text.slice(0, chars) + "…" : text;
  return harmless(cut);
}

// Controls, bidirectional overrides and isolates, zero-width characters and line separators.
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function harmless(text: string): string {
  return text.replace(INVISIBLE, (one) =>
    one === "\n" || one === "\t" ? " " : "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0"),
  );
}

/** Every number of a value by its path (`a.b`, `a[0]`), for plots. Strings that are numbers count, too. */
export function numbersOf(value: Json, found: Map<string, number> = new Map(), path = ""): Map<string, number> {
  if (value.kind === "number") found.set(path || "value", Number(value.text));
  else if (value.kind === "object")
    for (const [key, inner] of value.entries) numbersOf(inner, found, path ? `${path}.${key}` : key);
  else if (value.kind === "array")
    value.items.slice(0, 16).forEach((inner, index) => numbersOf(inner, found, `${path}[${index}]`));
  return found;
}
