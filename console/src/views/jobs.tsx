/** The jobs of a queue: what waits, who holds what until when, what failed and why, and what can be done about it. */
import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import { useMay } from "../lib/access.ts";
import { ApiError, call, listAll, topicPath, type TopicState, topicState } from "../lib/api.ts";
import { useFeatures } from "../lib/features.ts";
import { count, duration, plural, rate } from "../lib/format.ts";
import { History } from "../lib/history.ts";
import { type DeadLetter, type DoneJob, type Job, listDead, listDone, listJobs, listWorkers, redrive, type Worker } from "../lib/jobs.ts";
import { Rates, useDebounced, useNow, usePoll } from "../lib/poll.ts";
import { go, href } from "../lib/route.ts";
import { Badge, Button, Search, Segmented, Stat, Trouble } from "../ui/bits.tsx";
import { type Ask, useConfirm } from "../ui/dialog.tsx";
import { Sparkline } from "../ui/sparkline.tsx";
import { say } from "../ui/toast.tsx";
import { DeadTable, DoneTable, JobTable, WorkerTable } from "./joblists.tsx";

type Shown = "all" | Job["state"] | "done" | "dead" | "workers";
const SHOWN: [Shown, string][] = [
  ["all", "All"],
  ["ready", "Ready"],
  ["in_flight", "In flight"],
  ["delayed", "Delayed"],
  ["done", "Done"],
  ["dead", "Dead"],
  ["workers", "Workers"],
];

interface Around {
  workers: Worker[];
  schedules: { schedule: string; next_tick: number | null }[];
  done: TopicState | null;
  dead: TopicState | null;
  rates: Map<string, number>;
}

/** The topic, or null while it is not there: a dead-letter topic is made by the first letter. */
async function stateOf(name: string | null, signal: AbortSignal): Promise<TopicState | null> {
  if (name === null) return null;
  try {
    return await topicState(name, signal);
  } catch (error) {
    if (error instanceof ApiError && (error.status === 404 || error.status === 403)) return null;
    throw error;
  }
}

export function Jobs({ state, query }: { state: TopicState; query: URLSearchParams }): JSX.Element {
  const features = useFeatures();
  const now = useNow();
  const rates = useRef(new Rates());
  const history = useRef(new History(90));
  const name = state.topic;
  const done = typeof state.config.done === "string" ? state.config.done : null;
  const dead = state.config.dead_letter;
  const { value, error, again } = usePoll(async (signal): Promise<Around> => {
    const queue = await topicState(name, signal);
    const around: Around = { workers: [], schedules: [], done: await stateOf(done, signal), dead: await stateOf(dead, signal), rates: new Map() };
    around.rates = rates.current.sample([
      ["in", queue.head_seq],
      ["out", around.done?.head_seq ?? queue.head_seq - queue.count],
    ]);
    if (around.rates.size) history.current.add(around.rates);
    if (features.jobs) around.workers = await listWorkers(name, signal);
    if (features.schedules) around.schedules = await listAll<Around["schedules"][number]>("v0/schedules", "schedules", { topic: name }, () => undefined, signal);
    return around;
  }, [name, done, dead, features.jobs, features.schedules]);
  const queue = state.queue;
  const [dialog, ask] = useConfirm();
  const next = (value?.schedules ?? []).map((one) => one.next_tick).filter((tick) => tick !== null);
  const until = (ts: number): string => (ts > now ? `in ${duration(ts - now)}` : "now");
  const nextDue = !queue?.delayed ? "no job waits" : !queue.in_flight && typeof queue.next_due === "number" ? `next ${until(queue.next_due)}` : "until their time";
  const working = value?.workers.filter((one) => one.in_flight || one.waiting || one.streams).length ?? 0;
  return (
    <div class="scroll">
      <section class="stats many" aria-label="Jobs">
        <Stat name="Ready" value={count(queue?.ready ?? 0)} hint={typeof queue?.oldest_ms === "number" ? `oldest ${duration(queue.oldest_ms)}` : "no job waits"} tone={queue?.ready && working === 0 && value ? "warn" : undefined} />
        <Stat name="In flight" value={count(queue?.in_flight ?? 0)} hint={plural(working, "worker")} />
        <Stat name="Delayed" value={count(queue?.delayed ?? 0)} hint={nextDue} />
        <Stat name="Added" value={rate(value?.rates.get("in"))} unit="/s">
          <Sparkline values={history.current.of("in")} label="jobs added, the last minutes" />
        </Stat>
        <Stat name={done ? "Done" : "Finished"} value={rate(value?.rates.get("out"))} unit="/s">
          <Sparkline values={history.current.of("out")} label="jobs finished, the last minutes" />
        </Stat>
        <Stat name="Dead" value={count(value?.dead?.count ?? queue?.dead_lettered ?? 0)} hint={dead ? <a href={href(["topics", dead])}>{dead}</a> : "no dead-letter topic"} tone={value?.dead?.count ? "warn" : undefined} />
        {!!value?.schedules.length && <Stat name="Schedules" value={<a href={href(["schedules"], { topic: name })}>{count(value.schedules.length)}</a>} hint={next.length ? `next ${until(Math.min(...next))}` : "paused"} />}
      </section>
      <Trouble error={error} again={again} />
      {features.jobs ? <Lists state={state} around={value} query={query} ask={ask} /> : <Actions state={state} dead={dead} ask={ask} />}
      {dialog}
    </div>
  );
}

/** Pause, resume, purge, and dead letters back into the queue. */
function Actions({ state, dead, ask }: { state: TopicState; dead: string | null; ask: (ask: Ask) => void }): JSX.Element {
  const may = useMay();
  const features = useFeatures();
  const name = state.topic;
  const paused = state.config.paused === true;
  const post = (title: string, text: string, action: string, run: () => Promise<unknown>, danger = false, typed?: string): void => ask({ title, text: <p>{text}</p>, action, danger, typed, run });
  const purge = async (): Promise<void> => {
    const { deleted } = await call<{ deleted: number }>("POST", topicPath(name, "/delete"), { before_seq: state.head_seq + 1 });
    say(`${plural(deleted, "job")} deleted`);
  };
  const setPaused = async (): Promise<void> => {
    await call("POST", topicPath(name, paused ? "/resume" : "/pause"));
    say(paused ? `${name} goes on` : `${name} is paused`);
  };
  return (
    <span class="group">
      {paused && <Badge tone="warn">paused</Badge>}
      {features.jobs && may("admin") && (
        <Button icon={paused ? "play" : "pause"} onClick={() => post(paused ? "Resume the queue" : "Pause the queue", paused ? "Workers get jobs again." : "Workers get no jobs until it is resumed; jobs in flight go on.", paused ? "Resume queue" : "Pause queue", setPaused)}>
          {paused ? "Resume" : "Pause"}
        </Button>
      )}
      {features.jobs && dead && may("write") && may("delete") && (
        <Button icon="retry" onClick={() => post("Redrive dead letters", `All of ${dead} come back to ${name}, each once.`, "Redrive", async () => say(`${plural(await redrive(dead, name), "job")} back in ${name}`))}>
          Redrive
        </Button>
      )}
      {may("delete") && state.count > 0 && (
        <Button icon="trash" onClick={() => post("Purge the queue", `All ${count(state.count)} jobs of ${name} are deleted, in flight or not. This cannot be undone.`, "Purge", purge, true, name)}>
          Purge
        </Button>
      )}
    </span>
  );
}

interface Listed {
  shown: Shown;
  jobs: Job[];
  done: DoneJob[];
  dead: DeadLetter[];
  more: boolean;
}

function Lists({ state, around, query, ask }: { state: TopicState; around: Around | undefined; query: URLSearchParams; ask: (ask: Ask) => void }): JSX.Element {
  const name = state.topic;
  const shown = (query.get("state") ?? "all") as Shown;
  const tag = query.get("tag") ?? "";
  const tagAsked = useDebounced(tag);
  const latest = useRef<Around | undefined>(undefined);
  latest.current = around;
  const { value, error, again } = usePoll(
    async (signal): Promise<Listed> => {
      const listed: Listed = { shown, jobs: [], done: [], dead: [], more: false };
      const { done, dead } = latest.current ?? { done: null, dead: null };
      if (shown === "done" && done) listed.done = await listDone(name, await topicState(done.topic, signal), signal);
      else if (shown === "dead" && dead) listed.dead = await listDead(name, await topicState(dead.topic, signal), signal);
      else if (!["done", "dead", "workers"].includes(shown)) Object.assign(listed, await listJobs(name, shown === "all" ? "" : shown, tagAsked, signal));
      return listed;
    },
    [name, shown, tagAsked, around === undefined, around?.done?.topic, around?.dead?.topic],
  );
  const to = (change: Record<string, string>): string => href(["topics", name, "jobs"], { state: shown === "all" ? "" : shown, tag, ...change });
  const tagged = (row: { tag?: string }): boolean => !tagAsked || row.tag === tagAsked;
  const common = { name, ask, again };
  return (
    <>
      <div class="toolbar" role="toolbar" aria-label="Of the queue">
        <Segmented label="Shown" value={shown} options={SHOWN} onChange={(one) => go(to({ state: one === "all" ? "" : one }), true)} />
        {shown !== "workers" && <Search value={tag} label="With this tag" onInput={(text) => go(to({ tag: text }), true)} />}
        {value?.more && <span class="note">the first {count(value.jobs.length)}</span>}
        <span class="grow" />
        <Actions state={state} dead={state.config.dead_letter} ask={ask} />
      </div>
      <Trouble error={error} again={again} />
      <div class="table-box">
        {shown === "workers" ? (
          <WorkerTable rows={around?.workers ?? []} />
        ) : shown === "done" ? (
          <DoneTable rows={(value?.done ?? []).filter(tagged)} topic={typeof state.config.done === "string" ? state.config.done : null} />
        ) : shown === "dead" ? (
          <DeadTable {...common} rows={(value?.dead ?? []).filter(tagged)} topic={state.config.dead_letter} />
        ) : (
          <JobTable {...common} rows={value?.jobs ?? []} />
        )}
      </div>
    </>
  );
}
