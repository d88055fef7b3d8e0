/** Schedules: when what is appended, when next, and whether it was. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useMay } from "../lib/access.ts";
import { call, diff, listAll, type RecordRow, topicState } from "../lib/api.ts";
import { ago, count, dateTime, duration, plural } from "../lib/format.ts";
import { type DoneJob, listDone } from "../lib/jobs.ts";
import { preview, type Raw } from "../lib/json.ts";
import { useNow, usePoll } from "../lib/poll.ts";
import { go, href } from "../lib/route.ts";
import { Badge, Button, Empty, Loading, Search, Trouble } from "../ui/bits.tsx";
import { useConfirm } from "../ui/dialog.tsx";
import { Icon } from "../ui/icons.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { say } from "../ui/toast.tsx";
import { CreateSchedule, schedulePath } from "./newschedule.tsx";

interface Schedule {
  schedule: string;
  topic: string;
  cron?: string;
  every_ms?: number;
  timezone?: string;
  tag?: string;
  data?: Raw;
  missed: string;
  paused: boolean;
  last_tick: number | null;
  next_tick: number | null;
  ticks: number;
  problem?: string;
}

type Ask = ReturnType<typeof useConfirm>[1];

/** Every change is confirmed first: others notice each of them. */
function useActions(ask: Ask, again: () => void): (row: Schedule) => JSX.Element {
  const may = useMay();
  const post = (row: Schedule, action: string, title: string, text: string, told: string): void =>
    ask({
      title,
      text: <p>{text}</p>,
      action: title,
      run: async () => {
        await call("POST", schedulePath(row.schedule, action));
        say(`${row.schedule} ${told}`);
        again();
      },
    });
  const remove = (row: Schedule): void =>
    ask({
      title: "Delete the schedule",
      text: <p>{`${row.schedule} will append nothing more to ${row.topic}.`}</p>,
      action: "Delete schedule",
      danger: true,
      run: async () => {
        await call("DELETE", schedulePath(row.schedule));
        say(`${row.schedule} deleted`);
        if (location.hash === href(["schedules", row.schedule])) go(href(["schedules"]));
        else again();
      },
    });
  return (row) => (
    <span class="acts">
      {may("write") && <Button icon="play" kind="quiet" label={`Run ${row.schedule} now`} onClick={() => post(row, "/run", "Run now", `One record is appended to ${row.topic}, beside those of its times.`, "ran")} />}
      {may("admin") && (
        <Button
          icon={row.paused ? "retry" : "pause"}
          kind="quiet"
          label={`${row.paused ? "Resume" : "Pause"} ${row.schedule}`}
          onClick={() => (row.paused ? post(row, "/resume", "Resume schedule", `${row.schedule} appends to ${row.topic} again.`, "goes on") : post(row, "/pause", "Pause schedule", `${row.schedule} appends nothing to ${row.topic} until it is resumed.`, "is paused"))}
        />
      )}
      {may("delete") && <Button icon="trash" kind="quiet" label={`Delete ${row.schedule}`} onClick={() => remove(row)} />}
    </span>
  );
}

const when = (row: Schedule): string => (row.cron !== undefined ? `${row.cron} ${row.timezone ?? "UTC"}` : `every ${duration(row.every_ms ?? 0)}`);

function Next({ row, now }: { row: Schedule; now: number }): JSX.Element {
  if (row.problem !== undefined) return <Badge tone="bad" title={row.problem}>failing</Badge>;
  if (row.paused) return <Badge tone="warn">paused</Badge>;
  if (row.next_tick === null) return <>–</>;
  return <span title={dateTime(row.next_tick)}>{row.next_tick > now ? `in ${duration(row.next_tick - now)}` : "now"}</span>;
}

export function Schedules({ name, query }: { name: string | undefined; query: URLSearchParams }): JSX.Element {
  if (name !== undefined) return <OneSchedule key={name} name={name} />;
  return <AllSchedules query={query} />;
}

function AllSchedules({ query }: { query: URLSearchParams }): JSX.Element {
  const may = useMay();
  const now = useNow();
  const [creating, setCreating] = useState(false);
  const [dialog, ask] = useConfirm();
  const topic = query.get("topic") ?? "";
  const search = query.get("q") ?? "";
  const { value, error, again } = usePoll((signal) => listAll<Schedule>("v0/schedules", "schedules", topic ? { topic } : {}, () => undefined, signal), [topic]);
  const actions = useActions(ask, again);
  const columns: Column<Schedule>[] = [
    { key: "schedule", title: "Schedule", width: "minmax(0, 1fr)", render: (row) => <span class="name">{row.schedule}</span> },
    { key: "topic", title: "Appends to", width: "minmax(0, 0.7fr)", from: 700, render: (row) => <a href={href(["topics", row.topic])}>{row.topic}</a> },
    { key: "when", title: "When", width: "200px", from: 560, render: (row) => <span title={when(row)}>{preview(when(row), 80)}</span> },
    { key: "next", title: "Next run", width: "100px", narrow: "76px", number: true, render: (row) => <Next row={row} now={now} /> },
    { key: "last", title: "Last run", width: "110px", number: true, from: 700, render: (row) => ago(row.last_tick, now) },
    { key: "ticks", title: "Runs", width: "72px", number: true, from: 900, render: (row) => count(row.ticks) },
    { key: "act", title: "", width: "100px", render: actions },
  ];
  const rows = (value ?? []).filter((row) => row.schedule.toLowerCase().includes(search.toLowerCase()));
  const failing = rows.filter((row) => row.problem !== undefined);
  return (
    <div class="view fill">
      <header class="bar">
        <h1>Schedules</h1>
        <Search value={search} label="Find a schedule" onInput={(q) => go(href(["schedules"], { q, topic }), true)} />
        {topic && (
          <Badge tone="info">
            {preview(topic, 60)} <a href={href(["schedules"])}>show all</a>
          </Badge>
        )}
        <span class="note" role="status">
          {value && plural(rows.length, "schedule")}
        </span>
        <span class="grow" />
        {may("admin") && (
          <Button icon="plus" kind="primary" onClick={() => setCreating(true)}>
            New schedule
          </Button>
        )}
      </header>
      <Trouble error={error} again={again} />
      {failing.slice(0, 3).map((row) => (
        <div key={row.schedule} class="trouble" role="alert">
          <Icon name="warn" />
          <span>
            {row.schedule}: {row.problem}
          </span>
        </div>
      ))}
      {!value && !error && <Loading />}
      {value && (
        <Table
          label="Schedules"
          rows={rows}
          columns={columns}
          rowKey={(row) => row.schedule}
          link={(row) => href(["schedules", row.schedule])}
          empty={
            <Empty icon="schedules" title={value.length ? "No schedule has this in its name" : "No schedules yet"}>
              <p>A schedule appends a record at its times, exactly once, also over restarts.</p>
            </Empty>
          }
        />
      )}
      {dialog}
      {creating && <CreateSchedule topic={topic} onClose={() => (setCreating(false), again())} />}
    </div>
  );
}

interface Run {
  key: string;
  seq: number;
  due: number | null; // null: not known, only that the job is over
  ts: number;
  outcome: string;
  to: string;
}

const LOOKED = 1000; // records of the topic that are looked through for runs

function scheduled(row: RecordRow, name: string): number | null {
  try {
    const meta = JSON.parse(row.meta ?? "null") as Record<string, unknown> | null;
    return meta?.$schedule === name ? Number(meta.$scheduled_at) : null;
  } catch {
    return null;
  }
}

/** Runs that are still in the topic; of a queue with a history also jobs that are over and bear the schedule's tag. */
async function history(row: Schedule, signal: AbortSignal): Promise<Run[]> {
  const state = await topicState(row.topic, signal);
  const asked = row.tag === undefined ? {} : { tag: row.tag };
  const from = row.tag === undefined ? state.head_seq - LOOKED : state.earliest_seq - 1;
  const page = state.count ? await diff(row.topic, from, { limit: LOOKED, include_meta: true, ...asked }, signal) : { rows: [] };
  const runs = page.rows.flatMap((one): Run[] => {
    const due = scheduled(one, row.schedule);
    return due === null ? [] : [{ key: `r${one.seq}`, seq: one.seq, due, ts: one.ts, outcome: state.type === "queue" ? "waiting" : "appended", to: href(["topics", row.topic], { seq: one.seq }) }];
  });
  const done = state.config.done;
  if (typeof done === "string" && row.tag !== undefined) {
    const over = (await listDone(row.topic, await topicState(done, signal), signal)).filter((job) => job.tag === row.tag);
    runs.push(...over.map((job: DoneJob): Run => ({ key: `d${job.record}`, seq: job.seq, due: null, ts: job.appended, outcome: job.outcome, to: href(["topics", done], { seq: job.record }) })));
  }
  return runs.sort((a, b) => b.ts - a.ts);
}

const UPCOMING = 4;

/** The next runs of a schedule with a fixed interval; of a cron text the server tells one. */
function upcoming(row: Schedule): number[] {
  if (row.next_tick === null || row.paused) return [];
  const every = row.every_ms;
  return every === undefined ? [row.next_tick] : Array.from({ length: UPCOMING }, (_, place) => (row.next_tick as number) + place * every);
}

function OneSchedule({ name }: { name: string }): JSX.Element {
  const now = useNow();
  const [dialog, ask] = useConfirm();
  const { value, error, again } = usePoll(async (signal) => {
    const row = await call<Schedule>("GET", schedulePath(name), undefined, signal);
    return { row, runs: await history(row, signal) };
  }, [name]);
  const actions = useActions(ask, again);
  const row = value?.row;
  const columns: Column<Run>[] = [
    { key: "seq", title: "Seq", width: "92px", narrow: "70px", render: (run) => count(run.seq) },
    { key: "outcome", title: "Outcome", width: "96px", render: (run) => <Badge tone={run.outcome === "failed" ? "bad" : run.outcome === "waiting" ? "info" : run.outcome === "cancelled" ? "warn" : "good"}>{preview(run.outcome, 20)}</Badge> },
    { key: "due", title: "Scheduled for", width: "minmax(0, 1fr)", from: 560, render: (run) => (run.due === null ? "" : dateTime(run.due)) },
    { key: "late", title: "Late by", width: "84px", number: true, from: 700, render: (run) => (run.due === null ? "" : duration(run.ts - run.due)) },
    { key: "ts", title: "Appended", width: "minmax(0, 1fr)", number: true, render: (run) => ago(run.ts, now) },
  ];
  return (
    <div class="view fill">
      <header class="bar">
        <h1 class="name">
          <a href={href(["schedules"])} class="crumb">
            Schedules
          </a>
          <span aria-hidden="true"> / </span>
          {name}
        </h1>
        <span class="grow" />
        {row && actions(row)}
      </header>
      <Trouble error={error} again={again} />
      {!value && !error && <Loading />}
      {value && row && (
        <>
          {row.problem !== undefined && (
            <div class="trouble" role="alert">
              <Icon name="warn" />
              <span>{row.problem}</span>
            </div>
          )}
          <div class="two">
            <section class="card" aria-labelledby="s-what">
              <h2 id="s-what">What it does</h2>
              <dl>
                <dt>Appends to</dt>
                <dd>
                  <a href={href(["topics", row.topic])}>{row.topic}</a>
                </dd>
                <dt>When</dt>
                <dd>{when(row)}</dd>
                <dt>Data</dt>
                <dd class="mono">{preview(row.data?.text ?? "null", 300)}</dd>
                {row.tag !== undefined && <dt>Tag</dt>}
                {row.tag !== undefined && (
                  <dd>
                    <span class="tag">{preview(row.tag, 100)}</span>
                  </dd>
                )}
                <dt>Missed runs</dt>
                <dd>{({ one: "the last one is made up for", all: "each is made up for", skip: "are left out" } as Record<string, string>)[row.missed] ?? row.missed}</dd>
              </dl>
            </section>
            <section class="card" aria-labelledby="s-next">
              <h2 id="s-next">Runs</h2>
              {row.paused && <Badge tone="warn">paused</Badge>}
              <dl>
                {upcoming(row).map((tick) => [<dt key={`t${tick}`}>{dateTime(tick).slice(0, 19)}</dt>, <dd key={`d${tick}`}>{tick > now ? `in ${duration(tick - now)}` : "now"}</dd>])}
                <dt>Last run</dt>
                <dd>{ago(row.last_tick, now)}</dd>
                <dt>Runs so far</dt>
                <dd>{count(row.ticks)}</dd>
              </dl>
            </section>
          </div>
          <div class="table-box">
            <Table label="Runs" rows={value.runs} columns={columns} rowKey={(run) => run.key} link={(run) => run.to} empty={<Empty icon="schedules" title="No run is kept"><p>Jobs that are done leave their queue; with the setting “done” and a tag of its own a schedule has a history there.</p></Empty>} />
          </div>
        </>
      )}
      {dialog}
    </div>
  );
}
