/** Which topic is copied into which: a picture, and the same as a table. */
import type { JSX } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { useMay } from "../lib/access.ts";
import { call, listAll, type Router } from "../lib/api.ts";
import { listCursors } from "../lib/cursors.ts";
import { useFeatures } from "../lib/features.ts";
import { arrange } from "../lib/forest.ts";
import { count, plural, rate, short } from "../lib/format.ts";
import { Rates, usePoll } from "../lib/poll.ts";
import { go, href } from "../lib/route.ts";
import { Badge, Button, Empty, Field, Loading, Search, Trouble } from "../ui/bits.tsx";
import { Dialog, useConfirm } from "../ui/dialog.tsx";
import { type Column, sorted, Table } from "../ui/table.tsx";
import { say, sayError } from "../ui/toast.tsx";

const DRAWN_MAX = 200;
const BOX = { width: 190, height: 38, right: 120, down: 16 };

interface Row extends Router {
  rate: number | undefined;
}

export function Routers({ query }: { query: URLSearchParams }): JSX.Element {
  const rates = useRef(new Rates());
  const may = useMay();
  const features = useFeatures();
  const [creating, setCreating] = useState(false);
  const [dialog, ask] = useConfirm();
  const { value, error, again } = usePoll(async (signal) => {
    const routers = await listAll<Router>("v0/routers", "routers", {}, () => undefined, signal);
    rates.current.sample(routers.map((router) => [router.router, router.forwarded_total]));
    if (!features.cursors) return routers;
    const lags = new Map((await listCursors(signal)).filter(({ kind }) => kind === "router").map(({ cursor, lag }) => [cursor, lag.records]));
    return routers.map((router) => ({ ...router, lag: lags.get(router.router) }));
  }, [features.cursors]);
  const search = query.get("q") ?? "";
  const rows = useMemo(() => {
    const latest = rates.current.latest;
    const found = (value ?? []).filter((one) => `${one.router} ${one.source} ${one.dest}`.toLowerCase().includes(search.toLowerCase()));
    return found.map((router): Row => ({ ...router, rate: latest.get(router.router) }));
  }, [value, search]);
  const remove = ({ router, source, dest }: Row): void =>
    ask({
      title: "Delete the router",
      text: (
        <p>
          {router}: records of {source} are no longer copied to {dest}. Copies that were made stay.
        </p>
      ),
      action: "Delete router",
      danger: true,
      run: async () => {
        await call("DELETE", `v0/routers/${encodeURIComponent(router)}`);
        say(`${router} deleted`);
        again();
      },
    });
  const columns: Column<Row>[] = [
    { key: "router", title: "Router", width: "minmax(0, 1fr)", sort: (row) => row.router, render: (row) => <span class="name">{row.router}</span> },
    { key: "source", title: "From", width: "minmax(0, 0.8fr)", from: 700, sort: (row) => row.source, render: (row) => <a href={href(["topics", row.source])}>{row.source}</a> },
    { key: "dest", title: "To", width: "minmax(0, 0.8fr)", from: 700, sort: (row) => row.dest, render: (row) => <a href={href(["topics", row.dest])}>{row.dest}</a> },
    { key: "guarantee", title: "Guarantee", width: "124px", from: 1000, render: (row) => <Badge>{row.guarantee.replaceAll("_", " ")}</Badge> },
    { key: "lag", title: "Lag", width: "72px", number: true, from: 560, sort: (row) => row.lag ?? 0, render: (row) => (row.lag === undefined ? "–" : count(row.lag)) },
    { key: "rate", title: "Copies/s", width: "84px", number: true, sort: (row) => row.rate ?? 0, render: (row) => rate(row.rate) },
    { key: "total", title: "Copied", width: "92px", from: 480, number: true, sort: (row) => row.forwarded_total, render: (row) => count(row.forwarded_total) },
    ...(may("delete") ? [{ key: "act", title: "", width: "44px", narrow: "34px", render: (row: Row) => <Button icon="trash" kind="quiet" label={`Delete ${row.router}`} onClick={() => remove(row)} /> } satisfies Column<Row>] : []),
  ];
  return (
    <div class="view fill">
      <header class="bar">
        <h1>Routers</h1>
        <Search value={search} label="Find a router or topic" onInput={(q) => go(href(["routers"], { q }), true)} />
        <span class="note" role="status">
          {value && plural(rows.length, "router")}
        </span>
        <span class="grow" />
        {may("admin") && (
          <Button icon="plus" kind="primary" onClick={() => setCreating(true)}>
            New router
          </Button>
        )}
      </header>
      <Trouble error={error} again={again} />
      {!value && !error && <Loading />}
      {value && rows.length === 0 && (
        <Empty icon="routers" title={value.length ? "No router has this in its name" : "No routers yet"}>
          {!value.length && <p>A router copies each record of one topic into another, in order, by tag if wanted.</p>}
        </Empty>
      )}
      {value && rows.length > 0 && (
        <div class="scroll">
          <Graph routers={rows.slice(0, DRAWN_MAX)} />
          {rows.length > DRAWN_MAX && <p class="note">The picture has the first {DRAWN_MAX}; search for others.</p>}
          <div class="table-box">
            <Table label="Routers" rows={sorted(rows, columns, { key: "router", down: false })} columns={columns} rowKey={(row) => row.router} onOpen={(row) => go(href(["topics", row.dest]))} resetKey={search} />
          </div>
        </div>
      )}
      {dialog}
      {creating && <CreateRouter onClose={() => (setCreating(false), again())} />}
    </div>
  );
}

function Graph({ routers }: { routers: Row[] }): JSX.Element {
  const shape = routers.map((router) => router.router).join("\n");
  const drawing = useMemo(() => arrange(routers), [shape]);
  const x = (column: number): number => 8 + column * (BOX.width + BOX.right);
  const y = (row: number): number => 8 + row * (BOX.height + BOX.down);
  const width = x(drawing.columns) - BOX.right + 8;
  const height = y(drawing.rows);
  const described = routers.slice(0, 20).map((router) => `${router.source} to ${router.dest}`);
  return (
    <section class="card graph" tabIndex={0} aria-label="Picture of the routers">
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="group" aria-label={`Routers: ${described.join(", ")}`}>
        {routers.map((router) => {
          const from = drawing.topics.get(router.source);
          const to = drawing.topics.get(router.dest);
          if (!from || !to) return null;
          const [x1, y1, x2, y2] = [x(from.column) + BOX.width, y(from.row) + BOX.height / 2, x(to.column), y(to.row) + BOX.height / 2];
          const bend = Math.max(40, (x2 - x1) / 2);
          const active = (router.rate ?? 0) > 0;
          return (
            <g key={router.router} class={active ? "edge busy" : "edge"}>
              <path d={`M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2 - 7},${y2}`} />
              <path class="head" d={`M${x2 - 8},${y2 - 4} L${x2},${y2} L${x2 - 8},${y2 + 4}z`} />
              <text x={x2 - 14} y={y2 - 6} text-anchor="end">
                {router.lag ? `${short(router.lag)} behind` : active ? `${rate(router.rate)}/s` : short(router.forwarded_total)}
              </text>
            </g>
          );
        })}
        {[...drawing.topics.values()].map(({ topic, column, row }) => (
          <a key={topic} href={href(["topics", topic])} aria-label={topic}>
            <g class="node" transform={`translate(${x(column)},${y(row)})`}>
              <rect width={BOX.width} height={BOX.height} rx={8} />
              <text x={12} y={BOX.height / 2 + 4}>
                {topic.length > 24 ? topic.slice(0, 11) + "…" + topic.slice(-12) : topic}
              </text>
              <title>{topic}</title>
            </g>
          </a>
        ))}
      </svg>
    </section>
  );
}

function CreateRouter({ onClose }: { onClose: () => void }): JSX.Element {
  const [source, setSource] = useState("");
  const [dest, setDest] = useState("");
  const [filter, setFilter] = useState("");
  const [exactly, setExactly] = useState(false);
  const make = async (event: Event): Promise<void> => {
    event.preventDefault();
    try {
      await call("PUT", `v0/routers/${encodeURIComponent(`${source}->${dest}`)}`, { source, dest, filter: filter || null, guarantee: exactly ? "exactly_once" : "at_least_once" });
      say(`${source}->${dest} created`);
      onClose();
    } catch (error) {
      sayError(error);
    }
  };
  const input = (value: string, set: (text: string) => void, required: boolean): JSX.Element => <input value={value} required={required} autocomplete="off" spellcheck={false} onInput={(event) => set(event.currentTarget.value)} />;
  return (
    <Dialog title="New router" onClose={onClose}>
      <form onSubmit={make}>
        <Field label="Copy each new record of">{input(source, setSource, true)}</Field>
        <Field label="into" hint="It is made if it is not there.">
          {input(dest, setDest, true)}
        </Field>
        <Field label="Only with this tag" hint="x is the tag itself, x* its beginning; empty: all records">
          {input(filter, setFilter, false)}
        </Field>
        <label class="check">
          <input type="checkbox" checked={exactly} onChange={(event) => setExactly(event.currentTarget.checked)} /> exactly once, with the source noted in each copy's meta
        </label>
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary">
            Create
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}
