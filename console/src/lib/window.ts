/**
 * The stretch of a topic that is in the page: at most LINES_MAX lines, wherever in the topic it lies. It grows at the end that the
 * user reads towards and is cut at the other, so the page's memory does not depend on the topic's length.
 */
import { diff, type Gap, type Page, type ReadOptions, type RecordRow } from "./api.ts";

export type Line = { seq: number; gap: Gap; record?: undefined } | { seq: number; record: RecordRow; gap?: undefined };

export const LINES_MAX = 3000;
const CHARS_MAX = 24_000_000;
const PAGE = 200;
const SPAN_MAX = 20_000;

const recordLine = (record: RecordRow): Line => ({ seq: record.seq, record });
const gapLine = (gap: Gap): Line => ({ seq: gap.gap_to, gap });

function linesOf(page: Page): Line[] {
  const lines = page.rows.map(recordLine);
  return page.tombstone ? [gapLine(page.tombstone), ...lines] : lines;
}

export class RecordWindow {
  lines: Line[] = []; // ascending
  below = 0; // nothing with a seq up to this one is loaded
  upTo = 0; // everything up to this one was examined
  head = 0;
  earliest = 1;
  private chars = 0;

  constructor(
    readonly topic: string,
    readonly options: ReadOptions,
    private readonly signal: AbortSignal,
  ) {}

  get hasOlder(): boolean {
    return this.below > 0 && (this.below >= this.earliest || this.lines[0]?.gap === undefined);
  }

  get isAtHead(): boolean {
    return this.upTo >= this.head;
  }

  has(seq: number): boolean {
    return seq > this.below && seq <= this.upTo;
  }

  find(seq: number): RecordRow | undefined {
    let [low, high] = [0, this.lines.length - 1];
    while (low <= high) {
      const middle = (low + high) >> 1;
      const line = this.lines[middle] as Line;
      if (line.seq === seq) return line.record;
      if (line.seq < seq) low = middle + 1;
      else high = middle - 1;
    }
    return undefined;
  }

  private async read(from: number, limit: number): Promise<Page> {
    const page = await diff(this.topic, from, { ...this.options, limit: Math.min(1000, limit) }, this.signal);
    this.head = page.head_seq;
    this.earliest = page.earliest_seq;
    return page;
  }

  /** The newest records, given the head as the topic's state told it. */
  async newest(head: number): Promise<void> {
    await this.start(Math.max(0, head - PAGE), PAGE + 50);
    while (!this.isAtHead && this.lines.length < PAGE * 2) await this.newer();
    if (this.lines.length < 50) await this.older();
  }

  /** The records from a seq on, and some before it. */
  async around(seq: number): Promise<void> {
    await this.start(Math.max(0, seq - 1 - PAGE / 2), PAGE);
  }

  private async start(from: number, limit: number): Promise<void> {
    const page = await this.read(from, limit);
    this.lines = linesOf(page);
    const gap = page.tombstone;
    this.below = gap ? Math.max(0, gap.gap_from - 1) : from;
    this.upTo = page.next_from_seq;
    this.chars = 0;
    for (const line of this.lines) this.chars += size(line);
  }

  async newer(): Promise<void> {
    if (this.isAtHead) return;
    const page = await this.read(this.upTo, PAGE);
    this.append(linesOf(page), page.next_from_seq);
  }

  /** Reads go forward only, so a stretch in front is read and what is known of it left out; where little lies, a longer one. */
  async older(): Promise<void> {
    for (let span = PAGE; this.hasOlder; span = Math.min(span * 4, SPAN_MAX)) {
      const end = this.below;
      let from = end - span < this.earliest ? 0 : end - span;
      const start = from;
      const found: Line[] = [];
      while (from < end) {
        const page = await this.read(from, Math.min(1000, end - from));
        found.push(...linesOf(page).filter((line) => line.seq <= end));
        if (page.next_from_seq <= from) break;
        from = page.next_from_seq;
      }
      this.below = start;
      this.lines = [...found, ...this.lines];
      for (const line of found) this.chars += size(line);
      this.cut("newest");
      if (found.length) return;
    }
  }

  /** What a stream brought, or the next page. */
  append(lines: Line[], upTo: number): void {
    for (const line of lines) {
      this.lines.push(line);
      this.chars += size(line);
    }
    this.upTo = Math.max(this.upTo, upTo);
    this.head = Math.max(this.head, this.upTo);
    this.cut("oldest");
  }

  appendRecords(rows: RecordRow[], upTo: number): void {
    this.append(rows.filter((row) => row.seq > this.upTo).map(recordLine), upTo);
  }

  appendGap(gap: Gap): void {
    if (gap.reason === "recreated") {
      this.lines = [];
      this.upTo = 0;
    }
    this.append([gapLine(gap)], gap.reason === "recreated" ? 0 : gap.gap_to);
  }

  private cut(end: "oldest" | "newest"): void {
    let over = Math.max(0, this.lines.length - LINES_MAX);
    let chars = this.chars;
    const at = (index: number): Line => this.lines[end === "oldest" ? index : this.lines.length - 1 - index] as Line;
    for (let index = 0; index < over; index += 1) chars -= size(at(index));
    while (chars > CHARS_MAX && over < this.lines.length - 1) {
      chars -= size(at(over));
      over += 1;
    }
    if (!over) return;
    this.chars = chars;
    if (end === "oldest") {
      this.below = at(over - 1).seq;
      this.lines = this.lines.slice(over);
    } else {
      this.lines = this.lines.slice(0, this.lines.length - over);
      this.upTo = this.lines.at(-1)?.seq ?? this.below;
    }
  }
}

const size = (line: Line): number => (line.record ? line.record.data.length + (line.record.meta?.length ?? 0) + 64 : 64);

/** The seq of the first record that is not older than a time, by halving: about 24 small reads among ten million records. */
export async function seqAtTime(topic: string, ts: number, earliest: number, head: number, signal: AbortSignal): Promise<number> {
  let [low, high] = [earliest, head + 1];
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    const page = await diff(topic, middle - 1, { limit: 1, max_batch_bytes: 1, include_meta: false }, signal);
    const found = page.rows[0];
    if (!found || found.ts >= ts) high = middle;
    else low = found.seq + 1;
  }
  return low;
}

const UNITS: Record<string, number> = { ms: 1, s: 1000, sec: 1000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000 };

export type Target = { seq: number } | { last: number } | { ts: number };

/** What somebody typed into the seek field: `1200`, `-50`, `10m`, `2h ago`, `14:30`, `2026-11-18 14:30`, or milliseconds. */
export function parseTarget(text: string, now = new Date()): Target | null {
  const typed = text.trim().replaceAll(",", "");
  if (/^\d{12,}$/.test(typed)) return { ts: Number(typed) };
  if (/^\d+$/.test(typed)) return { seq: Number(typed) };
  if (/^-\d+$/.test(typed)) return { last: -Number(typed) };
  const back = /^(\d+(?:\.\d+)?)\s*(ms|s|sec|min|m|h|d)(\s+ago)?$/i.exec(typed);
  if (back) return { ts: now.getTime() - Number(back[1]) * (UNITS[(back[2] as string).toLowerCase()] as number) };
  const time = /^(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,3}))?)?$/.exec(typed);
  if (time) {
    const at = new Date(now);
    at.setHours(Number(time[1]), Number(time[2]), Number(time[3] ?? 0), Number((time[4] ?? "0").padEnd(3, "0")));
    return { ts: at.getTime() };
  }
  const parsed = /\d{4}-\d{2}-\d{2}/.test(typed) ? Date.parse(typed.replace(" ", "T")) : NaN;
  return Number.isNaN(parsed) ? null : { ts: parsed };
}
