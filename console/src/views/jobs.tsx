/** The jobs of a queue: who holds what until when, what failed and why, and what can be done about it. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { useMay } from "../lib/access.ts";
import { call, topicPath, type TopicState } from "../lib/api.ts";
import { useFeatures } from "../lib/features.ts";
import { ago, count, duration, plural } from "../lib/format.ts";
import { preview } from "../lib/json.ts";
import { useNow, usePoll } from "../lib/poll.ts";
import { go, href } from "../lib/route.ts";
import { Badge, Button, Empty, Segmented, Stat, Trouble } from "../ui/bits.tsx";
import { type Ask, useConfirm } from "../ui/dialog.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { say } from "../ui/toast.tsx";

interface Job {
  seq: number;
  state: "ready" | "delayed" | "in_flight";
  ts: number;
  tag?: string;
  priority: number;
  deliveries: number;
  node?: string;
  deadline?: number;
  due?: number;
  error?: string;
}

interface Worker {
  node: string;
  in_flight: number;
  first_deadline?: number;
  streams: number;
  waiting: number;
  last_seen: number;
}

type Shown = "all" | Job["state"] | "workers";

export function Jobs({ state, query }: { state: TopicState; query: URLSearchParams }): JSX.Element {
  const features = useFeatures();
  const { queue, config } = state;
  const dead = config.dead_letter;
  const done = typeof config.done === "string" ? config.done : null;
  const waits = queue?.delayed ?? state.count - (queue?.ready ?? 0) - (queue?.in_flight ?? 0);
  const [dialog, ask] = useConfirm();
  return (
    <div class="scroll">
      <section class="stats" aria-label="Jobs">
        <Stat name="Ready" value={count(queue?.ready ?? 0)} hint={typeof queue?.oldest_ms === "number" ? `oldest ${duration(queue.oldest_ms)}` : "wait for a worker"} />
        <Stat name="In flight" value={count(queue?.in_flight ?? 0)} hint="held by a worker" />
        <Stat name="Delayed" value={count(waits)} hint="wait for their time" />
        <Stat name="Dead" value={dead ? <a href={href(["topics", dead])}>{count(queue?.dead_lettered ?? 0)}</a> : count(queue?.dead_lettered ?? 0)} hint={dead ? `in ${dead}` : "no dead-letter topic"} tone={queue?.dead_lettered ? "warn" : undefined} />
        {done && <Stat name="History" value={<a href={href(["topics", done])}>{done}</a>} hint="one record for each job that is done" />}
      </section>
      <Actions state={state} dead={dead} ask={ask} />
      {features.jobs && <List state={state} query={query} ask={ask} />}
      {dialog}
    </div>
  );
}

/** Pause, resume, purge, and dead letters back into the queue. */
function Actions({ state, dead, ask }: { state: TopicState; dead: string | null; ask: (ask: Ask) => void }): JSX.Element | null {
  const may = useMay();
  const features = useFeatures();
  const name = state.topic;
  const paused = state.config.paused === true;
  const post = (title: string, text: string, action: string, run: () => Promise<unknown>, danger = false, typed?: string): void => ask({ title, text: <p>{text}</p>, action, danger, typed, run });
  const redrive = async (): Promise<void> => {
    let from = 0;
    let total = 0;
    for (;;) {
      const page = await call<{ redriven: number; next_from_seq: number; caught_up: boolean }>("POST", topicPath(dead as string, "/redrive"), { to: name, from_seq: from });
      total += page.redriven;
      if (page.caught_up || page.next_from_seq <= from) break;
      from = page.next_from_seq;
    }
    say(`${plural(total, "job")} back in ${name}`);
  };
  const purge = async (): Promise<void> => {
    const { deleted } = await call<{ deleted: number }>("POST", topicPath(name, "/delete"), { before_seq: state.head_seq + 1 });
    say(`${plural(deleted, "job")} deleted`);
  };
  const setPaused = async (): Promise<void> => {
    await call("POST", topicPath(name, paused ? "/resume" : "/pause"));
    say(paused ? `${name} goes on` : `${name} is paused`);
  };
  const buttons = [
    features.jobs && may("admin") && (
      <Button key="pause" icon={paused ? "play" : "pause"} onClick={() => post(paused ? "Resume the queue" : "Pause the queue", paused ? "Workers get jobs again." : "Workers get no jobs until it is resumed; jobs in flight go on.", paused ? "Resume queue" : "Pause queue", setPaused)}>
        {paused ? "Resume" : "Pause"}
      </Button>
    ),
    features.jobs && dead && may("write") && may("delete") && (
      <Button key="redrive" icon="retry" onClick={() => post("Redrive dead letters", `All of ${dead} come back to ${name}, each once.`, "Redrive", redrive)}>
        Redrive dead letters
      </Button>
    ),
    may("delete") && state.count > 0 && (
      <Button key="purge" icon="trash" onClick={() => post("Purge the queue", `All ${count(state.count)} jobs of ${name} are deleted, in flight or not. This cannot be undone.`, "Purge", purge, true, name)}>
        Purge
      </Button>
    ),
  ].filter(Boolean);
  return buttons.length ? (
    <div class="toolbar" role="toolbar" aria-label="Of the queue">
      {buttons}
      {paused && <Badge tone="warn">paused</Badge>}
    </div>
  ) : null;
}

function List({ state, query, ask }: { state: TopicState; query: URLSearchParams; ask: (ask: Ask) => void }): JSX.Element {
  const may = useMay();
  const now = useNow();
  const name = state.topic;
  const shown = (query.get("state") ?? "all") as Shown;
  const { value, error, again } = usePoll(async (signal): Promise<{ jobs: Job[]; workers: Worker[]; more: boolean }> => {
    if (shown === "workers") return { jobs: [], workers: (await call<{ workers: Worker[] }>("GET", topicPath(name, "/workers"), undefined, signal)).workers, more: false };
    const filter = shown === "all" ? "" : `&state=${shown}`;
    const page = await call<{ jobs: Job[]; next_cursor?: string | null }>("GET", topicPath(name, `/jobs?page_size=500${filter}`), undefined, signal);
    return { jobs: page.jobs, workers: [], more: !!page.next_cursor };
  }, [name, shown]);
  const columns = useMemo((): Column<Job>[] => {
    const act = (job: Job, verb: "cancel" | "retry", text: string): void =>
      ask({
        title: verb === "cancel" ? "Cancel the job" : "Retry now",
        text: <p>{text}</p>,
        action: verb === "cancel" ? "Cancel job" : "Retry now",
        danger: verb === "cancel",
        run: async () => {
          await call("POST", topicPath(name, `/${verb}`), { seqs: [job.seq] });
          say(`job ${job.seq}: done`);
          again();
        },
      });
    return [
      { key: "seq", title: "Job", width: "84px", render: (job) => count(job.seq) },
      { key: "state", title: "State", width: "92px", render: (job) => <Badge tone={job.state === "in_flight" ? "info" : job.state === "delayed" ? "warn" : "good"}>{job.state.replace("_", " ")}</Badge> },
      { key: "tag", title: "Tag", width: "minmax(0, 140px)", from: 700, render: (job) => job.tag !== undefined && <span class="tag">{preview(job.tag, 60)}</span> },
      { key: "who", title: "Held by, until", width: "minmax(0, 1fr)", from: 560, render: (job) => (job.node ? `${preview(job.node, 60)}, ${duration((job.deadline ?? now) - now)} left` : job.due ? `in ${duration(job.due - now)}` : "") },
      { key: "error", title: "Last error", width: "minmax(0, 1fr)", from: 900, render: (job) => job.error && <span title={job.error}>{preview(job.error, 200)}</span> },
      { key: "tries", title: "Tries", width: "52px", number: true, render: (job) => count(job.deliveries) },
      { key: "age", title: "Age", width: "84px", number: true, render: (job) => duration(now - job.ts) },
      {
        key: "act",
        title: "",
        width: "76px",
        render: (job) => (
          <span class="acts">
            {job.state === "delayed" && may("write") && <Button icon="retry" kind="quiet" label={`Retry job ${job.seq} now`} onClick={() => act(job, "retry", `Job ${job.seq} is handed out without further delay.`)} />}
            {may("delete") && <Button icon="close" kind="quiet" label={`Cancel job ${job.seq}`} onClick={() => act(job, "cancel", `Job ${job.seq} is deleted; a worker that holds it is told at its ack.`)} />}
          </span>
        ),
      },
    ];
  }, [name, now, may("delete"), may("write")]);
  const workers: Column<Worker>[] = [
    { key: "node", title: "Worker", width: "minmax(0, 1fr)", render: (one) => <span class="name">{preview(one.node, 80)}</span> },
    { key: "flight", title: "Holds", width: "72px", number: true, render: (one) => count(one.in_flight) },
    { key: "deadline", title: "Next lease ends", width: "130px", number: true, from: 560, render: (one) => (one.first_deadline ? `in ${duration(one.first_deadline - now)}` : "–") },
    { key: "waits", title: "Waits", width: "72px", number: true, from: 560, render: (one) => count(one.waiting + one.streams) },
    { key: "seen", title: "Last call", width: "110px", number: true, render: (one) => ago(one.last_seen, now) },
  ];
  return (
    <>
      <div class="toolbar">
        <Segmented
          label="Shown"
          value={shown}
          options={[
            ["all", "All"],
            ["ready", "Ready"],
            ["in_flight", "In flight"],
            ["delayed", "Delayed"],
            ["workers", "Workers"],
          ]}
          onChange={(next) => go(href(["topics", name, "jobs"], { state: next === "all" ? "" : next }), true)}
        />
        {value?.more && <span class="note">the first 500</span>}
      </div>
      <Trouble error={error} again={again} />
      <div class="table-box">
        {shown === "workers" ? (
          <Table label="Workers" rows={value?.workers ?? []} columns={workers} rowKey={(one) => one.node} empty={<Empty icon="queues" title="No worker has called lately" />} />
        ) : (
          <Table label="Jobs" rows={value?.jobs ?? []} columns={columns} rowKey={(job) => job.seq} onOpen={(job) => go(href(["topics", name], { seq: job.seq }))} empty={<Empty icon="queues" title="No such jobs" />} />
        )}
      </div>
    </>
  );
}
