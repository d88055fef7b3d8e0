/** Schedules: when what is appended, and whether it was. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useMay } from "../lib/access.ts";
import { call, listAll } from "../lib/api.ts";
import { ago, count, dateTime, duration, plural } from "../lib/format.ts";
import { jsonProblem, Raw } from "../lib/json.ts";
import { useNow, usePoll } from "../lib/poll.ts";
import { href } from "../lib/route.ts";
import { Badge, Button, Empty, Field, Loading, Trouble } from "../ui/bits.tsx";
import { Dialog, useConfirm } from "../ui/dialog.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { say, sayError } from "../ui/toast.tsx";

interface Schedule {
  schedule: string;
  topic: string;
  cron?: string;
  every_ms?: number;
  timezone?: string;
  paused: boolean;
  last_tick: number | null;
  next_tick: number | null;
  ticks: number;
  problem?: string;
}

const schedulePath = (name: string, action = ""): string => `v0/schedules/${encodeURIComponent(name)}${action}`;

export function Schedules(): JSX.Element {
  const may = useMay();
  const now = useNow();
  const [creating, setCreating] = useState(false);
  const [dialog, ask] = useConfirm();
  const { value, error, again } = usePoll((signal) => listAll<Schedule>("v0/schedules", "schedules", {}, () => undefined, signal), []);
  const act = async (row: Schedule, action: string, told: string): Promise<void> => {
    try {
      await call("POST", schedulePath(row.schedule, action));
      say(`${row.schedule} ${told}`);
      again();
    } catch (problem) {
      sayError(problem);
    }
  };
  const remove = (row: Schedule): void =>
    ask({ title: "Delete the schedule", text: <p>{row.schedule} will append nothing more to {row.topic}.</p>, action: "Delete schedule", danger: true, run: async () => (await call("DELETE", schedulePath(row.schedule)), say(`${row.schedule} deleted`), again()) });
  const columns: Column<Schedule>[] = [
    { key: "schedule", title: "Schedule", width: "minmax(0, 1fr)", render: (row) => <span class="name">{row.schedule}</span> },
    { key: "topic", title: "Topic", width: "minmax(0, 0.7fr)", from: 700, render: (row) => <a href={href(["topics", row.topic])}>{row.topic}</a> },
    { key: "when", title: "When", width: "170px", from: 560, render: (row) => (row.cron ? <span title={row.timezone}>{`${row.cron} ${row.timezone ?? ""}`}</span> : `every ${duration(row.every_ms ?? 0)}`) },
    { key: "next", title: "Next", width: "110px", number: true, render: (row) => (row.paused ? <Badge tone="warn">paused</Badge> : row.next_tick === null ? "–" : <span title={dateTime(row.next_tick)}>in {duration(row.next_tick - now)}</span>) },
    { key: "last", title: "Last", width: "110px", number: true, from: 700, render: (row) => ago(row.last_tick, now) },
    { key: "ticks", title: "Ticks", width: "72px", number: true, from: 900, render: (row) => count(row.ticks) },
    { key: "problem", title: "", width: "90px", from: 1000, render: (row) => row.problem && <Badge tone="bad" title={row.problem}>failing</Badge> },
    {
      key: "act",
      title: "",
      width: "116px",
      from: 480,
      render: (row) => (
        <span class="acts">
          {may("write") && <Button icon="play" kind="quiet" label={`Run ${row.schedule} now`} onClick={() => void act(row, "/run", "ran")} />}
          {may("admin") && <Button icon={row.paused ? "retry" : "pause"} kind="quiet" label={`${row.paused ? "Resume" : "Pause"} ${row.schedule}`} onClick={() => void act(row, row.paused ? "/resume" : "/pause", row.paused ? "goes on" : "is paused")} />}
          {may("delete") && <Button icon="trash" kind="quiet" label={`Delete ${row.schedule}`} onClick={() => remove(row)} />}
        </span>
      ),
    },
  ];
  return (
    <div class="view fill">
      <header class="bar">
        <h1>Schedules</h1>
        <span class="note">{value && plural(value.length, "schedule")}</span>
        <span class="grow" />
        {may("admin") && (
          <Button icon="plus" kind="primary" onClick={() => setCreating(true)}>
            New schedule
          </Button>
        )}
      </header>
      <Trouble error={error} again={again} />
      {!value && !error && <Loading />}
      {value && <Table label="Schedules" rows={value} columns={columns} rowKey={(row) => row.schedule} empty={<Empty icon="schedules" title="No schedules yet"><p>A schedule appends a record at its times, exactly once, also over restarts.</p></Empty>} />}
      {dialog}
      {creating && <CreateSchedule onClose={() => (setCreating(false), again())} />}
    </div>
  );
}

function CreateSchedule({ onClose }: { onClose: () => void }): JSX.Element {
  const [name, setName] = useState("");
  const [topic, setTopic] = useState("");
  const [cron, setCron] = useState("0 3 * * *");
  const [zone, setZone] = useState("UTC");
  const [data, setData] = useState("{}");
  const problem = jsonProblem(data);
  const make = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (problem) return;
    try {
      const body = `{"topic":${JSON.stringify(topic)},"cron":${JSON.stringify(cron)},"timezone":${JSON.stringify(zone)},"data":${data}}`;
      await call("PUT", schedulePath(name), new Raw(body));
      say(`${name} created`);
      onClose();
    } catch (error) {
      sayError(error);
    }
  };
  const input = (value: string, set: (text: string) => void): JSX.Element => <input value={value} required autocomplete="off" spellcheck={false} onInput={(event) => set(event.currentTarget.value)} />;
  return (
    <Dialog title="New schedule" onClose={onClose}>
      <form onSubmit={make}>
        <div class="fields">
          <Field label="Name">{input(name, setName)}</Field>
          <Field label="Appends to the topic">{input(topic, setTopic)}</Field>
          <Field label="Cron" hint="minute hour day month weekday">{input(cron, setCron)}</Field>
          <Field label="Time zone">{input(zone, setZone)}</Field>
        </div>
        <Field label="Data, any JSON" error={problem}>
          <textarea rows={4} value={data} spellcheck={false} onInput={(event) => setData(event.currentTarget.value)} />
        </Field>
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary" disabled={problem !== null}>
            Create
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}
