/**
 * A table of any length: only the rows in sight exist. Rows have one height; a grid for screen readers and the keyboard (arrows,
 * Page Up and Down, Home, End, Enter).
 */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useWidth } from "./bits.tsx";
import { Icon } from "./icons.tsx";

export interface Column<Row> {
  key: string;
  title: string;
  width: string; // of a CSS grid column
  narrow?: string; // the same on a phone
  number?: boolean;
  sort?: (row: Row) => number | string;
  /** Left out where the window is narrower. */
  from?: number;
  render: (row: Row) => ComponentChildren;
}

export interface Sorting {
  key: string;
  down: boolean;
}

export interface TableProps<Row> {
  label: string;
  rows: Row[];
  columns: Column<Row>[];
  rowKey: (row: Row) => string | number;
  onOpen?: (row: Row) => void;
  /** Where the row leads: the first cell becomes a link. */
  link?: (row: Row) => string;
  selected?: string | number | null;
  rowClass?: (row: Row) => string;
  sorting?: Sorting;
  onSort?: (sorting: Sorting) => void;
  rowHeight?: number;
  empty?: ComponentChildren;
  /** Told which rows are in sight. */
  onRange?: (first: number, last: number, atTop: boolean) => void;
  /** A change of it brings the table back to its top. */
  resetKey?: unknown;
  /** The place of a row that is brought into the middle, once for each `resetKey`; -1 while it is not there. */
  reveal?: number;
  /** Rows that are added above leave what is read where it is, except at the very top. */
  keepPlace?: boolean;
}

const PHONE = 560;
const BEYOND = 8; // rows made above and below what is in sight
const PIXELS_MAX = 8_000_000; // browsers stop laying out elements that are much higher

export function sorted<Row>(rows: Row[], columns: Column<Row>[], sorting: Sorting | undefined): Row[] {
  const by = columns.find((column) => column.key === sorting?.key)?.sort;
  if (!by || !sorting) return rows;
  const keyed = rows.map((row) => [by(row), row] as const);
  const sign = sorting.down ? -1 : 1;
  keyed.sort(([a], [b]) => (a < b ? -sign : a > b ? sign : 0));
  return keyed.map(([, row]) => row);
}

export function Table<Row>({ label, rows, columns, rowKey, onOpen, link, selected, rowClass, sorting, onSort, rowHeight = 38, empty, onRange, resetKey, reveal = -1, keepPlace }: TableProps<Row>): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [active, setActive] = useState(-1);
  const width = useWidth();
  const shown = columns.filter((column) => (column.from ?? 0) <= width);
  const template = shown.map((column) => (width < PHONE && column.narrow) || column.width).join(" ");
  const total = Math.min(rows.length * rowHeight, PIXELS_MAX);
  const first = Math.max(0, Math.floor(view.top / rowHeight) - BEYOND);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / rowHeight) + BEYOND);
  const id = `t-${label.replace(/\W+/g, "-")}`;

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = (): void => setView((now) => (now.height === element.clientHeight ? now : { ...now, height: element.clientHeight }));
    measure();
    const watched = new ResizeObserver(measure);
    watched.observe(element);
    return () => watched.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (box.current) box.current.scrollTop = 0;
    anchor.current = null;
    setActive(-1);
  }, [resetKey]);
  const anchor = useRef<{ key: string | number; offset: number } | null>(null);
  useLayoutEffect(() => {
    const element = box.current;
    const kept = anchor.current;
    if (!element || !keepPlace || !kept) return;
    const at = rows.findIndex((row) => rowKey(row) === kept.key);
    if (at < 0) return;
    const top = at * rowHeight + kept.offset;
    if (Math.abs(top - element.scrollTop) < 1) return;
    element.scrollTop = top;
    setActive((now) => (now < 0 ? now : now + Math.round((top - view.top) / rowHeight)));
  }, [rows]);
  const scrolled = (element: HTMLDivElement): void => {
    const top = element.scrollTop;
    const row = top > 0 ? rows[Math.floor(top / rowHeight)] : undefined;
    anchor.current = row === undefined ? null : { key: rowKey(row), offset: top % rowHeight };
    setView({ top, height: element.clientHeight });
  };
  const revealed = useRef<unknown>(null);
  useLayoutEffect(() => {
    if (!box.current || reveal < 0 || revealed.current === resetKey) return;
    revealed.current = resetKey;
    box.current.scrollTop = Math.max(0, (reveal + 1.5) * rowHeight - box.current.clientHeight / 2);
    setActive(reveal);
    scrolled(box.current);
  });
  useEffect(() => onRange?.(Math.floor(view.top / rowHeight), last - 1, view.top < rowHeight), [first, last, view.top < rowHeight, rows.length]);

  const move = (to: number): void => {
    const next = Math.max(0, Math.min(rows.length - 1, to));
    setActive(next);
    const element = box.current;
    if (!element) return;
    const head = rowHeight; // the header sticks to the top
    if (next * rowHeight < element.scrollTop) element.scrollTop = next * rowHeight;
    else if ((next + 1) * rowHeight + head > element.scrollTop + element.clientHeight) element.scrollTop = (next + 1) * rowHeight + head - element.clientHeight;
  };
  const pressed = (event: KeyboardEvent): void => {
    if (event.target !== box.current) return;
    const page = Math.max(1, Math.floor(view.height / rowHeight) - 2);
    const steps: Record<string, number> = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: rows.length - 1 };
    const to = steps[event.key];
    if (to !== undefined && rows.length) {
      event.preventDefault();
      move(to);
    } else if (event.key === "Enter") {
      const row = rows[active];
      if (row !== undefined) open(row);
    }
  };
  const open = (row: Row): void => {
    if (onOpen) onOpen(row);
    else if (link) location.hash = link(row);
  };
  return (
    <div ref={box} id={id} class="table" role="grid" aria-label={label} aria-rowcount={rows.length + 1} tabIndex={0} aria-activedescendant={active >= first && active < last ? `${id}-${active}` : undefined} onKeyDown={pressed} onScroll={(event) => scrolled(event.currentTarget)}>
      <div class="tr th" role="row" aria-rowindex={1} style={{ gridTemplateColumns: template, height: `${rowHeight}px` }}>
        {shown.map((column) => (
          <div key={column.key} role="columnheader" class={column.number ? "td num" : "td"} aria-sort={sorting?.key === column.key ? (sorting.down ? "descending" : "ascending") : undefined}>
            {column.sort && onSort ? (
              <button type="button" onClick={() => onSort({ key: column.key, down: sorting?.key === column.key ? !sorting.down : !!column.number })}>
                {column.title}
                {sorting?.key === column.key && <Icon name={sorting.down ? "down" : "up"} size={12} />}
              </button>
            ) : (
              column.title
            )}
          </div>
        ))}
      </div>
      {rows.length === 0 && <div role="row"><div role="gridcell">{empty}</div></div>}
      <div class="rows" role="rowgroup" style={{ height: `${total}px` }}>
        <div class="window" role="presentation" style={{ transform: `translateY(${first * rowHeight}px)` }}>
          {rows.slice(first, last).map((row, index) => {
            const at = first + index;
            const key = rowKey(row);
            const classes = `tr${at === active ? " active" : ""}${selected === key ? " selected" : ""} ${rowClass?.(row) ?? ""}`;
            return (
              <div key={key} id={`${id}-${at}`} class={classes} role="row" aria-rowindex={at + 2} aria-selected={selected === key} style={{ gridTemplateColumns: template, height: `${rowHeight}px` }} onClick={(event) => (event.target as Element).closest("a, button") || (setActive(at), open(row))}>
                {shown.map((column, place) => (
                  <div key={column.key} role="gridcell" class={column.number ? "td num" : "td"}>
                    {place === 0 && link ? (
                      <a href={link(row)} tabIndex={-1}>
                        {column.render(row)}
                      </a>
                    ) : (
                      column.render(row)
                    )}
                  </div>
                ))}
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}
