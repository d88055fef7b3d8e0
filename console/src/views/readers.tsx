/** Who reads what, and how far behind: named cursors, routers and queues in one list. */
import type { JSX } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { useMay } from "../lib/access.ts";
import { call, topicPath } from "../lib/api.ts";
import { type Cursor, cursorKey, cursorMeta, lags, listCursors } from "../lib/cursors.ts";
import { ago, bytes, count, duration, plural } from "../lib/format.ts";
import { History } from "../lib/history.ts";
import { usePoll } from "../lib/poll.ts";
import { go, href } from "../lib/route.ts";
import { parseTarget } from "../lib/window.ts";
import { Badge, Button, Empty, Field, Loading, Search, Segmented, Trouble } from "../ui/bits.tsx";
import { Dialog, useConfirm } from "../ui/dialog.tsx";
import { Plot, type Series } from "../ui/plot.tsx";
import { Sparkline } from "../ui/sparkline.tsx";
import { type Column, sorted, Table } from "../ui/table.tsx";
import { say, sayError } from "../ui/toast.tsx";

const HISTORY = 300; // samples: ten minutes at the usual pace
const LINES = 6;

type Kind = "all" | Cursor["kind"];

export function Readers({ query }: { query: URLSearchParams }): JSX.Element {
  const may = useMay();
  const history = useRef(new History(HISTORY));
  const [resetting, setResetting] = useState<Cursor | null>(null);
  const [dialog, ask] = useConfirm();
  const { value, error, again } = usePoll(async (signal) => {
    const cursors = await listCursors(signal);
    history.current.add(lags(cursors));
    return cursors;
  }, []);
  const search = query.get("q") ?? "";
  const kind = (query.get("kind") ?? "all") as Kind;
  const sorting = { key: query.get("sort") ?? "lag", down: query.get("up") !== "1" };
  const to = (change: Record<string, string>): string => href(["readers"], { q: search, kind: kind === "all" ? "" : kind, sort: sorting.key, up: sorting.down ? "" : "1", ...change });
  const remove = (cursor: Cursor): void =>
    ask({
      title: "Delete the cursor",
      text: (
        <p>
          {cursor.cursor} of {cursor.topic}, at seq {count(cursor.seq)}. Its reader begins anew, as its own program says.
        </p>
      ),
      action: "Delete cursor",
      danger: true,
      run: async () => {
        await call("DELETE", topicPath(cursor.topic, `/cursors/${encodeURIComponent(cursor.cursor)}`));
        say(`${cursor.cursor} deleted`);
        again();
      },
    });
  const columns: Column<Cursor>[] = [
    { key: "cursor", title: "Reader", width: "minmax(0, 1fr)", sort: (row) => row.cursor, render: (row) => <span class="name">{row.cursor}</span> },
    { key: "kind", title: "Kind", width: "84px", from: 560, sort: (row) => row.kind, render: (row) => <KindBadge cursor={row} /> },
    { key: "topic", title: "Topic", width: "minmax(0, 0.8fr)", from: 700, sort: (row) => row.topic, render: (row) => <a href={href(["topics", row.topic])}>{row.topic}</a> },
    { key: "seq", title: "At seq", width: "92px", number: true, from: 1100, sort: (row) => row.seq, render: (row) => count(row.seq) },
    { key: "history", title: "Lag lately", width: "120px", from: 1350, render: (row) => <Sparkline values={history.current.of(cursorKey(row))} label={`lag of ${row.cursor}, the last minutes`} width={120} height={24} /> },
    { key: "lag", title: "Behind", width: "92px", narrow: "74px", number: true, sort: (row) => row.lag.records, render: (row) => (row.lag.records ? <Badge tone={row.lag.ms > 60_000 ? "warn" : "plain"}>{count(row.lag.records)}</Badge> : <Badge tone="good">caught up</Badge>) },
    { key: "ms", title: "By time", width: "84px", number: true, from: 480, sort: (row) => row.lag.ms, render: (row) => (row.lag.ms ? duration(row.lag.ms) : "–") },
    { key: "bytes", title: "Bytes", width: "84px", number: true, from: 1500, sort: (row) => row.lag.bytes, render: (row) => bytes(row.lag.bytes) },
    { key: "updated", title: "Committed", width: "110px", number: true, from: 1200, sort: (row) => row.updated_ts ?? 0, render: (row) => (row.updated_ts ? ago(row.updated_ts) : "–") },
    {
      key: "act",
      title: "",
      width: "76px",
      narrow: "66px",
      render: (row) =>
        row.kind === "cursor" && (
          <span class="acts">
            {may("write") && <Button icon="retry" kind="quiet" label={`Reset ${row.cursor}`} onClick={() => setResetting(row)} />}
            {may("delete") && <Button icon="trash" kind="quiet" label={`Delete ${row.cursor}`} onClick={() => remove(row)} />}
          </span>
        ),
    },
  ];
  const rows = useMemo(() => {
    const found = (value ?? []).filter((one) => `${one.cursor} ${one.topic}`.toLowerCase().includes(search.toLowerCase()) && (kind === "all" || one.kind === kind));
    return sorted(found, columns, sorting);
  }, [value, search, kind, sorting.key, sorting.down]);
  return (
    <div class="view fill">
      <header class="bar">
        <h1>Readers</h1>
        <Search value={search} label="Find a reader or topic" onInput={(q) => go(to({ q }), true)} />
        <Segmented
          label="Kind"
          value={kind}
          options={[
            ["all", "All"],
            ["cursor", "Cursors"],
            ["router", "Routers"],
            ["queue", "Queues"],
          ]}
          onChange={(next) => go(to({ kind: next === "all" ? "" : next }), true)}
        />
        <span class="note" role="status">
          {value && plural(rows.length, "reader")}
        </span>
      </header>
      <Trouble error={error} again={again} />
      {!value && !error && <Loading />}
      {value && <LagOverTime rows={rows} history={history.current} />}
      {value && (
        <Table
          label="Readers"
          rows={rows}
          columns={columns}
          rowKey={cursorKey}
          onOpen={(row) => go(href(["topics", row.topic], { seq: row.seq || undefined }))}
          sorting={sorting}
          onSort={({ key, down }) => go(to({ sort: key, up: down ? "" : "1" }), true)}
          resetKey={search + kind}
          empty={
            <Empty icon="readers" title={value.length ? "No reader has this in its name" : "Nobody reads by name yet"}>
              {!value.length && <p>A program that commits its position to a named cursor is listed here with its lag.</p>}
            </Empty>
          }
        />
      )}
      {dialog}
      {resetting && <Reset cursor={resetting} onClose={() => (setResetting(null), again())} />}
    </div>
  );
}

/** The readers that are furthest behind, as long as the page has been open. */
function LagOverTime({ rows, history }: { rows: Cursor[]; history: History }): JSX.Element | null {
  const worst = rows.filter((row) => row.lag.records > 0).toSorted((a, b) => b.lag.records - a.lag.records).slice(0, LINES);
  const series = worst.map((row): Series => {
    const values = history.of(cursorKey(row));
    return { name: `${row.cursor} in ${row.topic}`, times: history.times(cursorKey(row)), values, length: values.length };
  });
  if (!series.some((one) => one.length > 1)) return null;
  return (
    <section class="card lags" aria-labelledby="r-lags">
      <h2 id="r-lags">Records behind, since this page was opened</h2>
      <Plot series={series} how="max" label="records behind, by reader, over time" height={170} version={rows} />
    </section>
  );
}

function KindBadge({ cursor }: { cursor: Cursor }): JSX.Element {
  const spark = cursorMeta(cursor).kind === "spark";
  return <Badge tone={cursor.kind === "cursor" ? "info" : "plain"}>{spark ? "spark" : cursor.kind}</Badge>;
}

function Reset({ cursor, onClose }: { cursor: Cursor; onClose: () => void }): JSX.Element {
  const [where, setWhere] = useState("start");
  const [typed, setTyped] = useState("");
  const target = parseTarget(typed);
  const ready = where !== "place" || (target !== null && !("last" in target));
  const run = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (!ready) return;
    try {
      await call("PUT", topicPath(cursor.topic, `/cursors/${encodeURIComponent(cursor.cursor)}`), { to: where === "place" ? target : where });
      say(`${cursor.cursor} was reset`);
      onClose();
    } catch (error) {
      sayError(error);
    }
  };
  return (
    <Dialog title={`Reset ${cursor.cursor}`} onClose={onClose}>
      <form onSubmit={run}>
        <p class="dialog-text">
          It stands at seq {count(cursor.seq)} of {cursor.topic}. Its reader gets records again, or skips some.
        </p>
        <Field label="To">
          <select value={where} onChange={(event) => setWhere(event.currentTarget.value)}>
            <option value="start">the start: everything comes again</option>
            <option value="end">the end: what is there is skipped</option>
            <option value="place">a seq or a time</option>
          </select>
        </Field>
        {where === "place" && (
          <Field label="Seq or time" hint="1200 (the last seq dealt with), 14:30, 2026-11-18 14:30, 10m (ago)" error={typed && !ready ? "this is neither a seq nor a time" : null}>
            <input value={typed} autocomplete="off" spellcheck={false} onInput={(event) => setTyped(event.currentTarget.value)} />
          </Field>
        )}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="danger" disabled={!ready}>
            Reset cursor
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}
