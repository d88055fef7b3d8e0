/** The lists of a queue: jobs that are there, jobs that are over, dead letters, workers. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useMay } from "../lib/access.ts";
import { call, topicPath } from "../lib/api.ts";
import { ago, count, dateTime, duration, plural } from "../lib/format.ts";
import { type DeadLetter, type DoneJob, type Job, payloads, redrive, type Worker } from "../lib/jobs.ts";
import { preview } from "../lib/json.ts";
import { useNow } from "../lib/poll.ts";
import { go, href } from "../lib/route.ts";
import { Badge, Button, Empty, Field, Meter, type Tone } from "../ui/bits.tsx";
import { type Ask, Dialog } from "../ui/dialog.tsx";
import { type Column, Table } from "../ui/table.tsx";
import { say, sayError } from "../ui/toast.tsx";

export interface ListProps<Row> {
  name: string;
  rows: Row[];
  ask: (ask: Ask) => void;
  again: () => void;
}

const tagColumn = <Row extends { tag?: string }>(): Column<Row> => ({ key: "tag", title: "Tag", width: "minmax(0, 120px)", from: 700, render: (row) => row.tag !== undefined && <span class="tag">{preview(row.tag, 60)}</span> });
const textColumn = <Row,>(title: string, text: (row: Row) => string | undefined, from = 900): Column<Row> => ({ key: "text", title, width: "minmax(0, 1fr)", from, render: (row) => <span title={preview(text(row) ?? "", 1000)}>{preview(text(row) ?? "", 200)}</span> });

function Progress({ fraction, text }: NonNullable<Job["progress"]>): JSX.Element {
  const percent = fraction === undefined ? undefined : Math.round(100 * fraction);
  return (
    <span title={text && preview(text, 300)}>
      {percent !== undefined && <Meter share={percent / 100} label={`${percent} percent done`} tone="good" />}
      {[percent === undefined ? "" : `${percent} %`, text === undefined ? "" : preview(text, 200)].filter(Boolean).join(", ")}
    </span>
  );
}

const KNOWN_MAX = 5000;
const JOB_TONE: Record<Job["state"], Tone> = { ready: "good", in_flight: "info", delayed: "warn" };

export function JobTable({ name, rows, ask, again }: ListProps<Job>): JSX.Element {
  const may = useMay();
  const now = useNow();
  const [moving, setMoving] = useState<Job | null>(null);
  const [range, setRange] = useState<[number, number]>([0, 0]);
  const data = usePayloads(name, rows.slice(range[0], range[1] + 1));
  const act = (job: Job, verb: "cancel" | "retry", title: string, text: string, action: string): void =>
    ask({
      title,
      text: <p>{text}</p>,
      action,
      danger: verb === "cancel",
      run: async () => {
        const { skipped } = await call<{ skipped: number[] }>("POST", topicPath(name, `/${verb}`), { seqs: [job.seq] });
        say(skipped.length ? `job ${job.seq} is no longer there` : verb === "cancel" ? `job ${job.seq} cancelled` : `job ${job.seq} is ready`);
        again();
      },
    });
  const where = (job: Job): JSX.Element | string => {
    if (job.node !== undefined) return <span title={job.deadline ? `until ${dateTime(job.deadline)}` : ""}>{`${preview(job.node, 60)}, ${job.deadline && job.deadline > now ? `${duration(job.deadline - now)} left` : "lease over"}`}</span>;
    return job.due ? <span title={dateTime(job.due)}>{job.due > now ? `in ${duration(job.due - now)}` : "now"}</span> : "";
  };
  const columns: Column<Job>[] = [
    { key: "seq", title: "Job", width: "84px", narrow: "64px", render: (job) => count(job.seq) },
    { key: "state", title: "State", width: "84px", narrow: "76px", render: (job) => <Badge tone={JOB_TONE[job.state]}>{job.state.replace("_", " ")}</Badge> },
    tagColumn(),
    { key: "who", title: "Held by, or due", width: "minmax(0, 1.4fr)", render: where },
    {
      key: "text",
      title: "Progress, last error or data",
      width: "minmax(0, 2fr)",
      from: 900,
      render: ({ seq, error, progress }) => (progress ? <Progress {...progress} /> : error === undefined ? <span class="mono">{data.get(seq) ?? ""}</span> : <span class="failure" title={preview(error, 1000)}>{preview(error, 200)}</span>),
    },
    { key: "priority", title: "Priority", width: "60px", number: true, from: 1500, render: (job) => (job.priority ? count(job.priority) : "") },
    { key: "tries", title: "Tries", width: "44px", number: true, from: 560, render: (job) => count(job.deliveries) },
    { key: "age", title: "Age", width: "76px", number: true, from: 480, render: (job) => duration(now - job.ts) },
    {
      key: "act",
      title: "",
      width: "100px",
      narrow: "66px",
      render: (job) => (
        <span class="acts">
          {job.state === "delayed" && may("write") && <Button icon="retry" kind="quiet" label={`Retry job ${job.seq} now`} onClick={() => act(job, "retry", "Retry now", `Job ${job.seq} is handed out without further delay.`, "Retry now")} />}
          {job.state !== "in_flight" && may("write") && may("delete") && innerWidth > 560 && <Button icon="send" kind="quiet" label={`Move job ${job.seq}`} onClick={() => setMoving(job)} />}
          {may("delete") && <Button icon="close" kind="quiet" label={`Cancel job ${job.seq}`} onClick={() => act(job, "cancel", "Cancel the job", `Job ${job.seq} is deleted; a worker that holds it is told at its ack.`, "Cancel job")} />}
        </span>
      ),
    },
  ];
  return (
    <>
      <Table label="Jobs" rows={rows} columns={columns} rowKey={(job) => job.seq} onOpen={(job) => go(href(["topics", name], { seq: job.seq }))} onRange={(first, last) => setRange([first, last])} empty={<Empty icon="queues" title="No such jobs" />} />
      {moving && <Move name={name} job={moving} onClose={() => (setMoving(null), again())} />}
    </>
  );
}

/** What the jobs in sight hold: asked once for each, and cut to what a row can show. */
function usePayloads(name: string, inSight: Job[]): Map<number, string> {
  const known = useRef(new Map<number, string>());
  const [, setVersion] = useState(0);
  const missing = inSight.map((job) => job.seq).filter((seq) => !known.current.has(seq));
  useEffect(() => {
    if (!missing.length) return;
    const ended = new AbortController();
    payloads(name, missing, ended.signal).then(
      (found) => {
        if (known.current.size > KNOWN_MAX) known.current.clear();
        for (const seq of missing) known.current.set(seq, found.get(seq) ?? "");
        setVersion((version) => version + 1);
      },
      () => undefined, // the list says itself that the server does not answer
    );
    return () => ended.abort();
  }, [name, missing.join()]);
  return known.current;
}

function Move({ name, job, onClose }: { name: string; job: Job; onClose: () => void }): JSX.Element {
  const [to, setTo] = useState("");
  const run = async (event: Event): Promise<void> => {
    event.preventDefault();
    try {
      const { moved } = await call<{ moved: number }>("POST", topicPath(name, "/move"), { seqs: [job.seq], to });
      say(moved ? `job ${job.seq} is in ${to}` : `job ${job.seq} was taken by a worker, or is gone`);
      onClose();
    } catch (error) {
      sayError(error);
    }
  };
  return (
    <Dialog title={`Move job ${job.seq}`} onClose={onClose}>
      <form onSubmit={run}>
        <Field label="To the queue" hint="It must exist. The job gets a new seq there and a fresh count of tries.">
          <input value={to} required autocomplete="off" spellcheck={false} onInput={(event) => setTo(event.currentTarget.value)} />
        </Field>
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary">
            Move job
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}

const OUTCOME_TONE: Record<string, Tone> = { acked: "good", failed: "bad", cancelled: "warn" };

export function DoneTable({ rows, topic }: { rows: DoneJob[]; topic: string | null }): JSX.Element {
  const now = useNow();
  const columns: Column<DoneJob>[] = [
    { key: "seq", title: "Job", width: "84px", narrow: "64px", render: (job) => count(job.seq) },
    { key: "outcome", title: "Outcome", width: "84px", narrow: "76px", render: (job) => <Badge tone={OUTCOME_TONE[job.outcome] ?? "plain"}>{preview(job.outcome, 20)}</Badge> },
    tagColumn(),
    { key: "node", title: "Worker", width: "minmax(0, 1fr)", render: (job) => preview(job.node ?? "", 60) },
    textColumn("Error or result", (job) => job.text),
    { key: "tries", title: "Tries", width: "44px", number: true, from: 560, render: (job) => count(job.deliveries) },
    { key: "waited", title: "Waited", width: "76px", number: true, from: 1100, render: (job) => (job.claimed === null ? "–" : duration(job.claimed - job.appended)) },
    { key: "took", title: "Took", width: "70px", number: true, from: 560, render: (job) => (job.claimed === null ? "–" : duration(job.done - job.claimed)) },
    { key: "when", title: "When", width: "96px", narrow: "84px", number: true, render: (job) => <span title={dateTime(job.done)}>{ago(job.done, now)}</span> },
  ];
  const empty = (
    <Empty icon="queues" title={topic ? "Nothing is done yet" : "This queue keeps no history"}>
      {!topic && <p>With the setting “done” each job that is over leaves a record in a topic of that name.</p>}
    </Empty>
  );
  return <Table label="Done" rows={rows} columns={columns} rowKey={(job) => job.record} onOpen={(job) => topic && go(href(["topics", topic], { seq: job.record }))} empty={empty} />;
}

export function DeadTable({ name, rows, ask, again, topic }: ListProps<DeadLetter> & { topic: string | null }): JSX.Element {
  const may = useMay();
  const now = useNow();
  const back = (letter: DeadLetter): void =>
    ask({
      title: "Redrive the letter",
      text: <p>{`Job ${letter.seq} comes back to ${name} with a fresh count of tries.`}</p>,
      action: "Redrive",
      run: async () => {
        const total = await redrive(topic as string, name, letter.record);
        say(`${plural(total, "job")} back in ${name}`);
        again();
      },
    });
  const columns: Column<DeadLetter>[] = [
    { key: "seq", title: "Job", width: "84px", narrow: "64px", render: (letter) => count(letter.seq) },
    tagColumn(),
    textColumn("Last error", (letter) => letter.error, 0),
    { key: "tries", title: "Tries", width: "44px", number: true, from: 560, render: (letter) => count(letter.deliveries) },
    { key: "first", title: "First try", width: "96px", number: true, from: 900, render: (letter) => ago(letter.first, now) },
    { key: "when", title: "Given up", width: "96px", narrow: "84px", number: true, render: (letter) => <span title={dateTime(letter.ts)}>{ago(letter.ts, now)}</span> },
    { key: "act", title: "", width: "34px", render: (letter) => may("write") && may("delete") && <Button icon="retry" kind="quiet" label={`Redrive job ${letter.seq}`} onClick={() => back(letter)} /> },
  ];
  const empty = (
    <Empty icon="ok" title={topic ? "No dead letters" : "This queue gives up on no job"}>
      {!topic && <p>With the settings “max_deliveries” and “dead_letter” a job that keeps failing goes to a topic of its own.</p>}
    </Empty>
  );
  return <Table label="Dead letters" rows={rows} columns={columns} rowKey={(letter) => letter.record} onOpen={(letter) => topic && go(href(["topics", topic], { seq: letter.record }))} empty={empty} />;
}

export function WorkerTable({ rows }: { rows: Worker[] }): JSX.Element {
  const now = useNow();
  const columns: Column<Worker>[] = [
    { key: "node", title: "Worker", width: "minmax(0, 1fr)", render: (one) => <span class="name">{preview(one.node, 80)}</span> },
    { key: "does", title: "State", width: "84px", render: (one) => <Badge tone={one.in_flight ? "info" : one.waiting + one.streams ? "good" : "plain"}>{one.in_flight ? "works" : one.waiting + one.streams ? "waits" : "away"}</Badge> },
    { key: "flight", title: "Holds", width: "60px", number: true, render: (one) => count(one.in_flight) },
    { key: "deadline", title: "First lease ends", width: "120px", number: true, from: 560, render: (one) => (one.first_deadline ? (one.first_deadline > now ? `in ${duration(one.first_deadline - now)}` : "now") : "–") },
    { key: "streams", title: "Streams", width: "72px", number: true, from: 700, render: (one) => count(one.streams) },
    { key: "seen", title: "Last call", width: "100px", narrow: "88px", number: true, render: (one) => ago(one.last_seen, now) },
  ];
  return <Table label="Workers" rows={rows} columns={columns} rowKey={(one) => one.node} empty={<Empty icon="queues" title="No worker has called in the last five minutes" />} />;
}
