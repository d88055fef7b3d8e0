/** One topic: its numbers on top, and below them its records, a plot, its jobs or its settings. */
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { useMay } from "../lib/access.ts";
import { call, topicPath, type TopicState, topicState } from "../lib/api.ts";
import { ago, bytes, count, duration, rate } from "../lib/format.ts";
import { Rates, usePoll } from "../lib/poll.ts";
import { go, href } from "../lib/route.ts";
import { Badge, Button, Empty, Loading, Tabs, Trouble } from "../ui/bits.tsx";
import { useConfirm } from "../ui/dialog.tsx";
import { say } from "../ui/toast.tsx";
import { PlotPanel } from "./plot.tsx";
import { Records } from "./records.tsx";
import { SendDialog } from "./send.tsx";
import { Jobs } from "./jobs.tsx";

export function Topic({ name, tab, query }: { name: string; tab: string; query: URLSearchParams }): JSX.Element {
  const rates = useRef(new Rates());
  const { value, error, again } = usePoll(async (signal) => {
    const state = await topicState(name, signal);
    rates.current.sample([["head", state.head_seq]]);
    return state;
  }, [name]);
  const [sending, setSending] = useState(false);
  const may = useMay();
  if (error?.status === 404 || error?.status === 403)
    return (
      <Empty icon="topics" title={error.status === 404 ? "There is no such topic" : "The key does not permit this topic"}>
        <p class="name">{name}</p>
        <p>
          <a href={href(["topics"])}>All topics</a>
        </p>
      </Empty>
    );
  const isQueue = value?.type === "queue";
  const at = (key: string): string => href(key === "records" ? ["topics", name] : ["topics", name, key]);
  const tabs: [string, string, string][] = [["records", "Records", at("records")], ["plot", "Plot", at("plot")], ["config", "Settings", at("config")]];
  if (isQueue) tabs.splice(1, 0, ["jobs", "Jobs", at("jobs")]);
  return (
    <div class="view fill topic">
      <header class="bar">
        <h1 class="name">
          <a href={href([isQueue ? "queues" : "topics"])} class="crumb">
            {isQueue ? "Queues" : "Topics"}
          </a>
          <span aria-hidden="true"> / </span>
          {name}
        </h1>
        {value && <Badge tone={isQueue ? "info" : "plain"}>{value.type}</Badge>}
        {value && <Badge tone={value.config.durability === "fsync" ? "good" : "plain"}>{value.config.durability}</Badge>}
        <span class="grow" />
        {may("write") && (
          <Button icon="send" kind="primary" onClick={() => setSending(true)}>
            Send
          </Button>
        )}
      </header>
      {value && tab !== "jobs" && <Numbers state={value} perSecond={rates.current.latest.get("head")} />}
      <Tabs label="Of this topic" tabs={tabs} current={tab} />
      <Trouble error={error} again={again} />
      {!value && !error && <Loading />}
      {value && tab === "records" && <Records state={value} query={query} />}
      {value && tab === "plot" && <PlotPanel state={value} query={query} />}
      {value && tab === "jobs" && <Jobs state={value} query={query} />}
      {value && tab === "config" && <Settings state={value} />}
      {sending && <SendDialog topic={name} onClose={() => setSending(false)} />}
    </div>
  );
}

function Numbers({ state, perSecond }: { state: TopicState; perSecond: number | undefined }): JSX.Element {
  const facts: [string, string][] = [
    ["records", count(state.count)],
    ["size", bytes(state.bytes)],
    ["seqs", state.count ? `${count(state.earliest_seq)} – ${count(state.head_seq)}` : `next ${count(state.next_seq)}`],
    ["writes/s", rate(perSecond)],
    ["last write", ago(state.last_write_ts)],
  ];
  if (state.queue) {
    facts.push(["ready", count(state.queue.ready)], ["in flight", count(state.queue.in_flight)]);
    if (state.queue.delayed !== undefined) facts.push(["delayed", count(state.queue.delayed)]);
    facts.push(["dead", count(state.queue.dead_lettered)]);
  }
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

const MEANING: Record<string, string> = {
  ttl_ms: "how long records are kept",
  cap_records: "how many records are kept",
  cap_bytes: "how many bytes are kept",
  discard: "what a full topic does: lets the oldest go, or refuses writes",
  durable: "older form of durability: true means fsync",
  durability: "what an ack means",
  priority: "of delivery, set by hand",
  auto_priority: "topics written to lately are delivered first",
  auto_create: "the first write makes the topic",
  dedupe_node: "a node does not get back what it wrote",
  idempotency_window_ms: "how long a repeated key is recognised",
  lease_ms: "how long a worker holds a job",
  max_deliveries: "after so many deliveries a job is a dead letter",
  dead_letter: "where dead letters go",
  claim_jitter_ms: "claims within this time are answered together",
  leases_durable: "leases survive a restart",
  retry: "how long a failed job waits for its next try",
  serial_by: "jobs with one tag are worked on one after the other",
  fair_by: "tags take turns, however many jobs each has",
  concurrency: "how many jobs may be in flight",
  tag_concurrency: "the same for each tag",
  rate: "how many jobs are handed out in a time",
  tag_rate: "the same for each tag",
  done: "where each job that is over leaves a record",
  compact: "only the newest record of a tag is kept",
  compact_grace_ms: "how long an older one stays at least",
};

function Settings({ state }: { state: TopicState }): JSX.Element {
  const may = useMay();
  const [dialog, ask] = useConfirm();
  const remove = (): void =>
    ask({
      title: "Delete the topic",
      text: (
        <p>
          {state.topic} with {count(state.count)} records, its routers and leases. This cannot be undone.
        </p>
      ),
      action: "Delete for ever",
      danger: true,
      typed: state.topic,
      run: async () => {
        await call("DELETE", topicPath(state.topic));
        say(`${state.topic} deleted`);
        go(href(["topics"]));
      },
    });
  return (
    <div class="scroll">
      <section class="card">
        <h2>Settings</h2>
        <dl>
          {Object.entries(state.config).map(([key, value]) => (
            <SettingRow key={key} name={key} value={value} />
          ))}
        </dl>
      </section>
      {may("delete") && (
        <section class="card danger-zone">
          <div>
            <h2>Delete this topic</h2>
            <p>Its records, routers and leases go with it.</p>
          </div>
          <Button kind="danger" icon="trash" onClick={remove}>
            Delete topic
          </Button>
        </section>
      )}
      {dialog}
    </div>
  );
}

function SettingRow({ name, value }: { name: string; value: unknown }): JSX.Element {
  const text = value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : name.endsWith("_ms") && typeof value === "number" ? (value ? duration(value) : name === "ttl_ms" ? "for ever" : "none") : typeof value === "number" ? (value === 0 && /^(cap|max|.*concurrency)/.test(name) ? "no limit" : count(value)) : String(value);
  return (
    <>
      <dt title={MEANING[name]}>
        {name}
        {MEANING[name] && <small>{MEANING[name]}</small>}
      </dt>
      <dd>{(name === "dead_letter" || name === "done") && typeof value === "string" ? <a href={href(["topics", value])}>{value}</a> : text}</dd>
    </>
  );
}
