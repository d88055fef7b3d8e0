/** All queues: who waits, who works, what failed. */
import type { JSX } from "preact";
import { useMemo, useRef } from "preact/hooks";
import { listAll, type TopicState, type TopicSummary, topicState } from "../lib/api.ts";
import { ago, count, plural, rate } from "../lib/format.ts";
import { Rates, usePoll } from "../lib/poll.ts";
import { go, href } from "../lib/route.ts";
import { Badge, Empty, Loading, Search, Trouble } from "../ui/bits.tsx";
import { type Column, sorted, Table } from "../ui/table.tsx";

const STATES_MAX = 200; // queues asked for their counters in one round

interface Row extends TopicState {
  in: number | undefined;
  out: number | undefined;
}

export function Queues({ query }: { query: URLSearchParams }): JSX.Element {
  const rates = useRef(new Rates());
  const { value, error, again } = usePoll(async (signal) => {
    const topics = await listAll<TopicSummary>("v0/topics", "topics", {}, () => undefined, signal);
    const queues = topics.filter((topic) => topic.type === "queue");
    const states: TopicState[] = [];
    for (const { topic } of queues.slice(0, STATES_MAX)) states.push(await topicState(topic, signal));
    rates.current.sample(states.flatMap((one) => [["in " + one.topic, one.head_seq], ["out " + one.topic, one.head_seq - one.count]] as [string, number][]));
    return { states, all: queues.length };
  }, []);
  const search = query.get("q") ?? "";
  const sorting = { key: query.get("sort") ?? "topic", down: query.get("down") === "1" };
  const to = (change: Record<string, string>): string => href(["queues"], { q: search, sort: sorting.key === "topic" ? "" : sorting.key, down: sorting.down ? "1" : "", ...change });
  const rows = useMemo(() => {
    const found = (value?.states ?? []).filter((state) => state.topic.toLowerCase().includes(search.toLowerCase()));
    const latest = rates.current.latest;
    return sorted(
      found.map((state): Row => ({ ...state, in: latest.get("in " + state.topic), out: latest.get("out " + state.topic) })),
      COLUMNS,
      sorting,
    );
  }, [value, search, sorting.key, sorting.down]);
  return (
    <div class="view fill">
      <header class="bar">
        <h1>Queues</h1>
        <Search value={search} label="Find a queue" onInput={(q) => go(to({ q }), true)} />
        <span class="note" role="status">
          {value && (value.all > value.states.length ? `${count(value.states.length)} of ${plural(value.all, "queue")}` : plural(value.all, "queue"))}
        </span>
      </header>
      <Trouble error={error} again={again} />
      {!value && !error && <Loading />}
      {value && (
        <Table
          label="Queues"
          rows={rows}
          columns={COLUMNS}
          rowKey={(row) => row.topic}
          link={(row) => href(["topics", row.topic, "jobs"])}
          sorting={sorting}
          onSort={({ key, down }) => go(to({ sort: key === "topic" ? "" : key, down: down ? "1" : "" }), true)}
          resetKey={search}
          empty={
            <Empty icon="queues" title={value.all ? "No queue has this in its name" : "No queues yet"}>
              {!value.all && <p>A queue is a topic whose records are jobs: each is leased to one worker until it is done.</p>}
            </Empty>
          }
        />
      )}
    </div>
  );
}

const number = (key: string, title: string, value: (row: Row) => number, tone?: (row: Row) => "warn" | "bad" | null, from?: number): Column<Row> => ({
  key,
  title,
  width: "88px",
  narrow: "58px",
  number: true,
  from,
  sort: value,
  render: (row) => {
    const found = tone?.(row);
    return found ? <Badge tone={found}>{count(value(row))}</Badge> : count(value(row));
  },
});

const COLUMNS: Column<Row>[] = [
  { key: "topic", title: "Queue", width: "minmax(0, 1fr)", sort: (row) => row.topic, render: (row) => <span class="name">{row.topic}</span> },
  { key: "state", title: "", width: "84px", from: 700, render: (row) => row.config.paused === true && <Badge tone="warn">paused</Badge> },
  number("ready", "Ready", (row) => row.queue?.ready ?? 0),
  number("flight", "In flight", (row) => row.queue?.in_flight ?? 0),
  number("delayed", "Delayed", (row) => row.queue?.delayed ?? row.count - (row.queue?.ready ?? 0) - (row.queue?.in_flight ?? 0), undefined, 700),
  number("dead", "Dead", (row) => row.queue?.dead_lettered ?? 0, (row) => (row.queue?.dead_lettered ? "warn" : null)),
  { key: "in", title: "In/s", width: "72px", number: true, from: 900, sort: (row) => row.in ?? -1, render: (row) => rate(row.in) },
  { key: "out", title: "Done/s", width: "72px", number: true, from: 900, sort: (row) => row.out ?? -1, render: (row) => rate(row.out) },
  { key: "written", title: "Last job", width: "128px", number: true, from: 1100, sort: (row) => row.last_write_ts ?? 0, render: (row) => ago(row.last_write_ts) },
];
