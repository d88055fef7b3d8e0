/** Spark: the queries that read here, by their cursors, and the tables that a pipeline writes back, as charts. */
import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import { diff, listAll, type TopicSummary } from "../lib/api.ts";
import { type Cursor, cursorKey, cursorMeta, lags, listCursors } from "../lib/cursors.ts";
import { ago, count, duration, rate, short } from "../lib/format.ts";
import { useFeatures } from "../lib/features.ts";
import { History } from "../lib/history.ts";
import { Rates, usePoll } from "../lib/poll.ts";
import { href } from "../lib/route.ts";
import { Badge, Empty, Loading, Meter, Trouble } from "../ui/bits.tsx";
import { Plot, type Series } from "../ui/plot.tsx";
import { Sparkline } from "../ui/sparkline.tsx";

const GOLD = "gold";
const ROWS = 1000;
const SHOWN = 10;

type Row = Record<string, unknown>;

interface GoldTable {
  topic: string;
  rows: Row[];
  written: number | null;
}

/** The rows of a table's last writing: records that share the newest batch, told by `_batch`, else all that were read. */
async function goldTable(topic: TopicSummary, signal: AbortSignal): Promise<GoldTable> {
  const page = await diff(topic.topic, Math.max(0, topic.head_seq - ROWS), { limit: ROWS, include_meta: false }, signal);
  const rows = page.rows.map((row) => JSON.parse(row.data) as unknown).filter((row): row is Row => typeof row === "object" && row !== null);
  const batch = rows.at(-1)?._batch;
  return { topic: topic.topic, rows: rows.filter((row) => row._batch === batch), written: page.rows.at(-1)?.ts ?? null };
}

export function Spark(): JSX.Element {
  const features = useFeatures();
  const history = useRef(new History());
  const rates = useRef(new Rates());
  const queries = usePoll(async (signal) => {
    const cursors = features.cursors ? (await listCursors(signal)).filter((cursor) => cursorMeta(cursor).kind === "spark") : [];
    history.current.add(lags(cursors));
    rates.current.sample(cursors.map((cursor) => [cursorKey(cursor), cursor.seq]));
    return cursors;
  }, [features.cursors]);
  const gold = usePoll(async (signal) => {
    const topics = await listAll<TopicSummary>("v0/topics", "topics", { prefix: GOLD }, () => undefined, signal);
    const tables: GoldTable[] = [];
    for (const topic of topics.slice(0, 20)) if (topic.count) tables.push(await goldTable(topic, signal));
    return tables;
  }, [], 5000);
  const nothing = queries.value?.length === 0 && gold.value?.length === 0;
  return (
    <div class="view">
      <header class="bar">
        <h1>Spark</h1>
      </header>
      <Trouble error={queries.error ?? gold.error} />
      {!queries.value && !queries.error && <Loading />}
      {nothing && (
        <Empty icon="spark" title="No query and no table yet">
          <p>A streaming query with a cursor is listed here with its lag, and topics whose names begin with “gold” are drawn as charts.</p>
        </Empty>
      )}
      {!!queries.value?.length && (
        <section class="two" aria-label="Queries">
          {queries.value.map((cursor) => (
            <Query key={cursorKey(cursor)} cursor={cursor} lags={history.current.of(cursorKey(cursor))} perSecond={rates.current.latest.get(cursorKey(cursor))} />
          ))}
        </section>
      )}
      {!!gold.value?.length && (
        <section class="two" aria-label="Tables">
          {gold.value.map((table) => (
            <Chart key={table.topic} table={table} />
          ))}
        </section>
      )}
    </div>
  );
}

function Query({ cursor, lags, perSecond }: { cursor: Cursor; lags: number[]; perSecond: number | undefined }): JSX.Element {
  const meta = cursorMeta(cursor);
  return (
    <section class="card">
      <h2>
        {String(meta.query ?? meta.name ?? cursor.cursor)} <Badge tone={cursor.lag.records ? "info" : "good"}>{cursor.lag.records ? `${count(cursor.lag.records)} behind` : "caught up"}</Badge>
      </h2>
      <dl>
        <dt>Reads</dt>
        <dd>
          <a href={href(["topics", cursor.topic])}>{cursor.topic}</a> up to seq {count(cursor.seq)}
        </dd>
        <dt>Rate</dt>
        <dd>{rate(perSecond)} records/s</dd>
        <dt>Lag</dt>
        <dd>{cursor.lag.ms ? duration(cursor.lag.ms) : "none"}</dd>
        <dt>Last batch</dt>
        <dd>
          {meta.batch === undefined ? "" : `${String(meta.batch)}, `}
          {ago(cursor.updated_ts)}
        </dd>
      </dl>
      <Sparkline values={lags} label="lag, the last minutes" />
    </section>
  );
}

/** A column of times that rows are gathered by, and not just when something was seen. */
const WINDOW = /minute|hour|day|window|^time$/;
const isTime = (value: unknown): value is string => typeof value === "string" && /^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}/.test(value);

/** Rows with a time are lines over it, one for each value of the first text; other rows are bars. */
function Chart({ table }: { table: GoldTable }): JSX.Element {
  const sample = table.rows[0] ?? {};
  const keys = Object.keys(sample).filter((key) => !key.startsWith("_"));
  const window = keys.find((key) => WINDOW.test(key) && isTime(sample[key]));
  const time = window !== undefined && new Set(table.rows.map((row) => row[window])).size > 2 ? window : undefined;
  const texts = keys.filter((key) => typeof sample[key] === "string" && !isTime(sample[key]));
  const numbers = keys.filter((key) => typeof sample[key] === "number");
  const [value] = numbers;
  return (
    <section class="card">
      <h2>
        <a href={href(["topics", table.topic])}>{table.topic}</a> <small>written {ago(table.written)}</small>
      </h2>
      {value === undefined ? (
        <p class="note">There is no number in its rows.</p>
      ) : time !== undefined ? (
        <Plot series={lines(table.rows, time, texts.at(-1), value)} how="sum" label={`${value} of ${table.topic} over time`} version={table.written} height={240} />
      ) : (
        <Bars rows={table.rows} name={texts.at(-1)} value={value} more={numbers.slice(1, 4)} />
      )}
    </section>
  );
}

function lines(rows: Row[], time: string, by: string | undefined, value: string): Series[] {
  const found = new Map<string, [number, number][]>();
  for (const row of rows) {
    const name = by === undefined ? value : String(row[by]);
    const point: [number, number] = [Date.parse(String(row[time]).replace(" ", "T")), Number(row[value])];
    found.set(name, [...(found.get(name) ?? []), point]);
  }
  return [...found].slice(0, 8).map(([name, points]) => {
    points.sort(([a], [b]) => a - b);
    return { name, times: points.map(([at]) => at), values: points.map(([, one]) => one), length: points.length };
  });
}

function Bars({ rows, name, value, more }: { rows: Row[]; name: string | undefined; value: string; more: string[] }): JSX.Element {
  const top = rows.toSorted((a, b) => Number(b[value]) - Number(a[value])).slice(0, SHOWN);
  const most = Math.max(1e-9, ...top.map((row) => Number(row[value])));
  return (
    <ul class="bars">
      {top.map((row, index) => (
        <li key={index} title={more.map((key) => `${key}: ${String(row[key])}`).join(", ")}>
          <span class="name">{name === undefined ? index + 1 : String(row[name])}</span>
          <Meter share={Number(row[value]) / most} label={`${value} ${String(row[value])}`} />
          <span class="num">{short(Number(row[value]))}</span>
        </li>
      ))}
    </ul>
  );
}
