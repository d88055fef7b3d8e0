/** Jobs, workers, dead letters and the history of a queue, as the server tells them (docs/spec/http-api.md §19). */
import { preview } from "./json.ts";
import { call, diff, type RecordRow, topicPath, type TopicState } from "./api.ts";

export interface Job {
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
  unique?: string;
  progress?: { fraction?: number; text?: string; ts: number };
}

export interface Worker {
  node: string;
  in_flight: number;
  first_deadline?: number;
  streams: number;
  waiting: number;
  last_seen: number;
}

/** A job that is over, by the record of the `done` topic. */
export interface DoneJob {
  record: number; // seq in the `done` topic
  seq: number;
  outcome: string;
  tag?: string;
  node: string | null;
  appended: number;
  claimed: number | null;
  done: number;
  deliveries: number;
  text: string; // the error, or the result
}

export interface DeadLetter {
  record: number; // seq in the dead-letter topic
  seq: number;
  ts: number;
  tag?: string;
  deliveries: number;
  error: string;
  first: number | null;
}

const LISTED = 500;

export async function listJobs(name: string, state: string, tag: string, signal: AbortSignal): Promise<{ jobs: Job[]; more: boolean }> {
  const asked = new URLSearchParams({ page_size: String(LISTED), ...(state ? { state } : {}), ...(tag ? { tag } : {}) });
  const page = await call<{ jobs: Job[]; next_cursor?: string | null }>("GET", topicPath(name, `/jobs?${asked}`), undefined, signal);
  return { jobs: page.jobs, more: !!page.next_cursor };
}

const PAYLOADS_BYTES = 256 << 10;

/** The beginning of what these jobs hold, by seq; those that a page of this size does not reach are left out. */
export async function payloads(name: string, seqs: number[], signal: AbortSignal): Promise<Map<number, string>> {
  const first = Math.min(...seqs);
  const page = await diff(name, first - 1, { limit: Math.min(1000, Math.max(...seqs) - first + 1), max_batch_bytes: PAYLOADS_BYTES, include_meta: false }, signal);
  return new Map(page.rows.map((row) => [row.seq, preview(row.data, 200)]));
}

export const listWorkers = async (name: string, signal: AbortSignal): Promise<Worker[]> => (await call<{ workers: Worker[] }>("GET", topicPath(name, "/workers"), undefined, signal)).workers;

/** The newest records of a topic, newest first. */
async function newest(topic: TopicState, meta: boolean, signal: AbortSignal): Promise<RecordRow[]> {
  const page = await diff(topic.topic, topic.head_seq - LISTED, { limit: LISTED, include_meta: meta }, signal);
  return page.rows.reverse();
}

function object(text: string | undefined): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text ?? "{}");
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

const numberOf = (value: unknown): number | null => (value === null || value === undefined || Number.isNaN(Number(value)) ? null : Number(value));

/** Several queues may share one history: only what this one did. */
export async function listDone(queue: string, topic: TopicState, signal: AbortSignal): Promise<DoneJob[]> {
  return (await newest(topic, false, signal)).flatMap((row) => {
    const said = object(row.data);
    if (said.queue !== queue) return [];
    const text = said.error ?? said.result;
    return {
      record: row.seq,
      seq: numberOf(said.seq) ?? 0,
      outcome: String(said.outcome),
      tag: row.tag,
      node: typeof said.node === "string" ? said.node : null,
      appended: numberOf(said.appended_ts) ?? row.ts,
      claimed: numberOf(said.claimed_ts),
      done: numberOf(said.done_ts) ?? row.ts,
      deliveries: numberOf(said.deliveries) ?? 0,
      text: text === undefined || text === null ? "" : typeof text === "string" ? text : JSON.stringify(text),
    };
  });
}

export async function listDead(queue: string, topic: TopicState, signal: AbortSignal): Promise<DeadLetter[]> {
  return (await newest(topic, true, signal)).flatMap((row) => {
    const said = object(row.meta);
    if (said.$dead_letter_from !== queue) return [];
    return {
      record: row.seq,
      seq: numberOf(said.$dead_letter_src_seq) ?? 0,
      ts: row.ts,
      tag: row.tag,
      deliveries: numberOf(said.$dead_letter_deliveries) ?? 0,
      error: String(said.$dead_letter_error ?? said.$dead_letter_reason ?? ""),
      first: numberOf(said.$dead_letter_first_ts),
    };
  });
}

interface Redriven {
  redriven: number;
  next_from_seq: number;
  caught_up: boolean;
}

/** Dead letters back into their queue: one, or all that came from it. */
export async function redrive(dead: string, to: string, record?: number): Promise<number> {
  let from = record === undefined ? 0 : record - 1;
  let total = 0;
  for (;;) {
    const page = await call<Redriven>("POST", topicPath(dead, "/redrive"), { to, from_seq: from, ...(record === undefined ? {} : { limit: 1 }) });
    total += page.redriven;
    if (record !== undefined || page.caught_up || page.next_from_seq <= from) return total;
    from = page.next_from_seq;
  }
}
