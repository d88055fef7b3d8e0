/** Any numeric field of a topic over time, by tag, live. */
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, diff, type RecordRow, type TopicState, watch } from "../lib/api.ts";
import { count, plural } from "../lib/format.ts";
import { type Json, numbersOf, parseJson } from "../lib/json.ts";
import { go, href } from "../lib/route.ts";
import { Button, Empty, Loading, Trouble } from "../ui/bits.tsx";
import { type Aggregate, AGGREGATES, Plot, type Series } from "../ui/plot.tsx";

const POINTS_MAX = 50_000;
const FIELDS_MAX = 40;
const TAGS_MAX = 8;
const RECORDS = "records";
const SPANS = [1000, 5000, 20_000, 50_000] as const;

/** Numbers of the records, in columns: time, tag and one column for each field. A ring that forgets the oldest half when full. */
class Points {
  times = new Float64Array(POINTS_MAX);
  tags = new Uint32Array(POINTS_MAX);
  fields = new Map<string, Float64Array>();
  tagNames: string[] = [];
  length = 0;
  private tagIndex = new Map<string, number>();

  add(record: RecordRow): void {
    if (this.length === POINTS_MAX) this.forget();
    const at = this.length++;
    this.times[at] = record.ts;
    this.tags[at] = this.tagOf(record.tag ?? "");
    for (const column of this.fields.values()) column[at] = NaN;
    let value: Json;
    try {
      value = parseJson(record.data);
    } catch {
      return;
    }
    for (const [path, number] of numbersOf(value)) {
      let column = this.fields.get(path);
      if (!column) {
        if (this.fields.size >= FIELDS_MAX) continue;
        column = new Float64Array(POINTS_MAX).fill(NaN);
        this.fields.set(path, column);
      }
      column[at] = number;
    }
  }

  private tagOf(tag: string): number {
    const known = this.tagIndex.get(tag);
    if (known !== undefined) return known;
    if (this.tagNames.length >= 10_000) return 0; // tags without end: no use as a legend
    this.tagIndex.set(tag, this.tagNames.length);
    return this.tagNames.push(tag) - 1;
  }

  private forget(): void {
    const half = POINTS_MAX >> 1;
    for (const column of [this.times, this.tags, ...this.fields.values()]) column.copyWithin(0, half);
    this.length = POINTS_MAX - half;
  }

  /** One series, or one for each of the most frequent tags. */
  series(field: string, byTag: boolean): Series[] {
    const column = this.fields.get(field);
    const has = (at: number): boolean => field === RECORDS || (column !== undefined && !Number.isNaN(column[at] as number));
    const counted = new Map<number, number>();
    if (byTag) for (let at = 0; at < this.length; at += 1) if (has(at)) counted.set(this.tags[at] as number, (counted.get(this.tags[at] as number) ?? 0) + 1);
    const top = [...counted].sort(([, a], [, b]) => b - a).slice(0, TAGS_MAX).map(([tag]) => tag).sort((a, b) => a - b);
    const wanted: (number | null)[] = byTag ? top : [null];
    return wanted.map((tag) => {
      const times: number[] = [];
      const values: number[] = [];
      for (let at = 0; at < this.length; at += 1)
        if ((tag === null || this.tags[at] === tag) && has(at)) {
          times.push(this.times[at] as number);
          values.push(field === RECORDS ? 1 : (column?.[at] as number));
        }
      return { name: tag === null ? field : this.tagNames[tag] || "no tag", times, values, length: times.length };
    });
  }
}

export function PlotPanel({ state, query }: { state: TopicState; query: URLSearchParams }): JSX.Element {
  const name = state.topic;
  const [version, setVersion] = useState(0);
  const [live, setLive] = useState(true);
  const [error, setError] = useState<ApiError>();
  const [ready, setReady] = useState(false);
  const points = useRef(new Points());
  const span = Number(query.get("last") ?? 5000);
  useEffect(() => {
    const ended = new AbortController();
    const mine = (points.current = new Points());
    let timer = 0;
    const soon = (): void => {
      timer ||= window.setTimeout(() => {
        timer = 0;
        setVersion((now) => now + 1);
      }, 100);
    };
    setReady(false);
    const run = async (): Promise<void> => {
      let at = Math.max(0, state.head_seq - span);
      for (;;) {
        const page = await diff(name, at, { limit: 1000, include_meta: false }, ended.signal);
        page.rows.forEach((row) => mine.add(row));
        at = page.next_from_seq;
        setReady(true);
        soon();
        if (page.caught_up) break;
      }
      if (!live) return;
      const add = (rows: RecordRow[]): void => {
        rows.forEach((row) => mine.add(row));
        soon();
      };
      await watch(name, at, { records: add, gap: () => undefined, status: () => undefined }, ended.signal);
    };
    run().catch((problem: unknown) => {
      if (!ended.signal.aborted && problem instanceof ApiError) setError(problem);
    });
    return () => {
      ended.abort();
      clearTimeout(timer);
    };
  }, [name, live, span]);

  const fields = [...points.current.fields.keys()];
  const field = query.get("field") ?? fields.find((one) => !/(^|[._])(id|seq|ts|time)$/i.test(one)) ?? RECORDS;
  const how = (query.get("how") ?? (field === RECORDS ? "count" : "mean")) as Aggregate;
  const byTag = query.get("by") === "tag";
  const to = (change: Record<string, string>): void => go(href(["topics", name, "plot"], { field: query.get("field"), how: query.get("how"), by: query.get("by"), last: query.get("last"), ...change }), true);
  const series = useMemo(() => points.current.series(field, byTag), [field, byTag, version, name]);
  return (
    <div class="scroll">
      <section class="card">
        <div class="toolbar" role="toolbar" aria-label="Plot">
          <button type="button" class={live ? "live is-live" : "live"} aria-pressed={live} onClick={() => setLive(!live)}>
            <i class="dot" />
            {live ? "Live" : "Paused"}
          </button>
          <label class="inline">
            Field
            <select value={field} onChange={(event) => to({ field: event.currentTarget.value, how: "" })}>
              <option value={RECORDS}>number of records</option>
              {fields.map((one) => (
                <option key={one} value={one}>
                  {one}
                </option>
              ))}
            </select>
          </label>
          <label class="inline">
            Show
            <select value={how} onChange={(event) => to({ how: event.currentTarget.value })}>
              {AGGREGATES.map((one) => (
                <option key={one} value={one}>
                  {one}
                </option>
              ))}
            </select>
          </label>
          <label class="inline">
            Of the last
            <select value={String(span)} onChange={(event) => to({ last: event.currentTarget.value })}>
              {SPANS.map((one) => (
                <option key={one} value={String(one)}>
                  {count(one)} records
                </option>
              ))}
            </select>
          </label>
          <label class="check">
            <input type="checkbox" checked={byTag} onChange={(event) => to({ by: event.currentTarget.checked ? "tag" : "" })} /> by tag
          </label>
          <span class="grow" />
          <span class="note">{plural(points.current.length, "record")}</span>
          <Button kind="quiet" icon="link" label="This plot has an address: copy it" onClick={() => void navigator.clipboard?.writeText(location.href)} />
        </div>
        <Trouble error={error} />
        {!ready && !error && <Loading />}
        {ready && points.current.length === 0 && <Empty icon="chart" title="Nothing to plot yet" />}
        {ready && points.current.length > 0 && <Plot series={series} how={how} label={`${how} of ${field} of ${name} over time`} version={version} height={Math.max(220, Math.min(460, innerHeight - 380))} />}
      </section>
    </div>
  );
}
