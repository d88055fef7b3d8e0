/** All topics: find one among ten thousand. */
import type { JSX } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { useMay } from "../lib/access.ts";
import { listAll, type TopicSummary } from "../lib/api.ts";
import { type Cursor, listCursors } from "../lib/cursors.ts";
import { useFeatures } from "../lib/features.ts";
import { ago, bytes, count, plural, rate } from "../lib/format.ts";
import { Rates, usePoll } from "../lib/poll.ts";
import { go, href } from "../lib/route.ts";
import { Badge, Button, Empty, Loading, Search, Segmented, Trouble } from "../ui/bits.tsx";
import { type Column, sorted, Table } from "../ui/table.tsx";
import { CreateTopic } from "./create.tsx";

interface Row extends TopicSummary {
  rate: number | undefined;
  readers: number;
  lag: number; // of the reader that is furthest behind
}

interface Listing {
  topics: TopicSummary[];
  done: boolean;
}

export function Topics({ query }: { query: URLSearchParams }): JSX.Element {
  const [creating, setCreating] = useState(false);
  const may = useMay();
  const rates = useRef(new Rates());
  const known = useRef(false);
  const features = useFeatures();
  const readers = usePoll(async (signal) => byTopic(features.cursors ? await listCursors(signal) : []), [features.cursors]);
  const { value, error, again } = usePoll<Listing>(async (signal, tell) => {
    const topics = await listAll<TopicSummary>(
      "v0/topics",
      "topics",
      {},
      ({ items, done }) => known.current || tell({ topics: [...items], done }),
      signal,
    );
    known.current = true;
    rates.current.sample(topics.map((topic) => [topic.topic, topic.head_seq]));
    return { topics, done: true };
  }, []);
  const search = query.get("q") ?? "";
  const type = (query.get("type") ?? "all") as "all" | "log" | "queue";
  const sorting = { key: query.get("sort") ?? "topic", down: query.get("down") === "1" };
  const to = (change: Record<string, string>): string => href(["topics"], { q: search, type: type === "all" ? "" : type, sort: sorting.key === "topic" ? "" : sorting.key, down: sorting.down ? "1" : "", ...change });
  const perSecond = rates.current.latest;
  const rows = useMemo(() => {
    const wanted = search.toLowerCase();
    const found = (value?.topics ?? []).filter((topic) => topic.topic.toLowerCase().includes(wanted) && (type === "all" || topic.type === type));
    return sorted(
      found.map((topic): Row => ({ ...topic, rate: perSecond.get(topic.topic), ...(readers.value?.get(topic.topic) ?? { readers: 0, lag: 0 }) })),
      COLUMNS,
      sorting,
    );
  }, [value, search, type, sorting.key, sorting.down, perSecond, readers.value]);
  return (
    <div class="view fill">
      <header class="bar">
        <h1>Topics</h1>
        <Search value={search} label="Find a topic" onInput={(q) => go(to({ q }), true)} />
        <Segmented
          label="Type"
          value={type}
          options={[
            ["all", "All"],
            ["log", "Logs"],
            ["queue", "Queues"],
          ]}
          onChange={(next) => go(to({ type: next === "all" ? "" : next }), true)}
        />
        <span class="note" role="status">
          {value && (search || type !== "all" ? `${count(rows.length)} of ${count(value.topics.length)}` : plural(rows.length, "topic"))}
          {value && !value.done && ", more come"}
        </span>
        <span class="grow" />
        {may("admin") && (
          <Button icon="plus" kind="primary" onClick={() => setCreating(true)}>
            New topic
          </Button>
        )}
      </header>
      <Trouble error={error} again={again} />
      {!value && !error && <Loading />}
      {value && (
        <Table
          label="Topics"
          rows={rows}
          columns={COLUMNS}
          rowKey={(row) => row.topic}
          link={(row) => href(["topics", row.topic])}
          sorting={sorting}
          onSort={({ key, down }) => go(to({ sort: key === "topic" ? "" : key, down: down ? "1" : "" }), true)}
          resetKey={search + type + sorting.key + sorting.down}
          empty={
            <Empty icon="topics" title={value.topics.length ? "No topic has this in its name" : "No topics yet"}>
              {!value.topics.length && <p>A topic is made by the first write to it.</p>}
            </Empty>
          }
        />
      )}
      {creating && <CreateTopic onClose={() => setCreating(false)} />}
    </div>
  );
}

function TypeBadges({ row }: { row: Row }): JSX.Element {
  return (
    <span class="badges">
      <Badge tone={row.type === "queue" ? "info" : "plain"}>{row.type ?? "–"}</Badge>
      {row.durable && <Badge tone="good">fsync</Badge>}
    </span>
  );
}

/** Cursors and routers of each topic; a queue's own position is no reader of its own. */
function byTopic(cursors: Cursor[]): Map<string, Pick<Row, "readers" | "lag">> {
  const found = new Map<string, Pick<Row, "readers" | "lag">>();
  for (const { topic, kind, lag } of cursors) {
    if (kind === "queue") continue;
    const { readers, lag: most } = found.get(topic) ?? { readers: 0, lag: 0 };
    found.set(topic, { readers: readers + 1, lag: Math.max(most, lag.records) });
  }
  return found;
}

const COLUMNS: Column<Row>[] = [
  { key: "topic", title: "Topic", width: "minmax(0, 1fr)", sort: (row) => row.topic, render: (row) => <span class="name">{row.topic}</span> },
  { key: "type", title: "Type", width: "104px", from: 560, sort: (row) => row.type ?? "", render: (row) => <TypeBadges row={row} /> },
  { key: "rate", title: "Writes/s", width: "84px", narrow: "62px", number: true, sort: (row) => row.rate ?? -1, render: (row) => rate(row.rate) },
  { key: "count", title: "Records", width: "104px", narrow: "78px", number: true, sort: (row) => row.count, render: (row) => count(row.count) },
  { key: "bytes", title: "Size", width: "88px", number: true, from: 560, sort: (row) => row.bytes, render: (row) => bytes(row.bytes) },
  { key: "head", title: "Head", width: "104px", number: true, from: 900, sort: (row) => row.head_seq, render: (row) => count(row.head_seq) },
  { key: "written", title: "Last write", width: "100px", number: true, from: 1000, sort: (row) => row.last_write_ts ?? 0, render: (row) => ago(row.last_write_ts) },
  { key: "readers", title: "Readers", width: "68px", number: true, from: 1000, sort: (row) => row.readers, render: (row) => (row.readers ? count(row.readers) : "–") },
  { key: "lag", title: "Behind", width: "84px", number: true, from: 1000, sort: (row) => row.lag, render: (row) => (row.lag ? count(row.lag) : "–") },
];
