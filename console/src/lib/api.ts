/**
 * The server's API. The console is a client like any other: everything it shows and does is in docs/spec/http-api.md.
 *
 * The key is sent in a header, also to streams (`fetch` instead of EventSource), so it is in no address. It is kept in
 * memory; on request in sessionStorage, which only pages of this origin in this very tab can read.
 */
import { parseAnswer, Raw } from "./json.ts";

export interface RecordRow {
  seq: number;
  ts: number;
  tag?: string;
  node?: string;
  data: string;
  meta?: string;
}

export interface Gap {
  gap_from: number;
  gap_to: number;
  reason: string;
}

export interface TopicSummary {
  topic: string;
  type?: "log" | "queue";
  head_seq: number;
  earliest_seq: number;
  count: number;
  bytes: number;
  durable: boolean;
  effective_priority: number;
  last_write_ts?: number | null;
}

export interface QueueCounters {
  ready: number;
  in_flight: number;
  dead_lettered: number;
  lost_in_flight?: number;
  delayed?: number;
  oldest_ms?: number;
  next_due?: number;
  [more: string]: unknown;
}

export interface TopicState extends TopicSummary {
  type: "log" | "queue";
  next_seq: number;
  config: Record<string, unknown> & { durability: string; dead_letter: string | null };
  last_read_ts: number | null;
  queue?: QueueCounters;
}

export interface Router {
  router: string;
  source: string;
  dest: string;
  guarantee: string;
  forwarded_total: number;
  lag?: number;
}

export interface Page {
  rows: RecordRow[];
  next_from_seq: number;
  head_seq: number;
  earliest_seq: number;
  caught_up: boolean;
  tombstone: Gap | null;
}

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string,
  ) {
    super(message);
  }
  /** Will it be the same when it is tried again? */
  get isFinal(): boolean {
    return this.status >= 400 && this.status < 500 && this.status !== 429;
  }
}

// --- the key -----------------------------------------------------------------------------------------------------------

const KEPT = "topics-console-key";
let secret = sessionStorage.getItem(KEPT) ?? "";

export const hasKey = (): boolean => secret !== "";

export function setKey(key: string, keep: boolean): void {
  secret = key;
  if (key && keep) sessionStorage.setItem(KEPT, key);
  else sessionStorage.removeItem(KEPT);
}

let whenRefused: () => void = () => undefined;
export function onUnauthorized(call: () => void): void {
  whenRefused = call;
}

// --- calls -------------------------------------------------------------------------------------------------------------

/** What the calls since the last reset cost the server, in milliseconds: polls are paced by it. */
export const spent = { ms: 0 };
const REQUEST_MS = 0.4; // parsing, routing and sending, which `server_total_ms` leaves out

function headers(body: boolean): Record<string, string> {
  const made: Record<string, string> = {};
  if (secret) made.authorization = "Bearer " + secret;
  if (body) made["content-type"] = "application/json";
  return made;
}

async function refusal(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => "");
  let message = response.statusText || `the server answered ${response.status}`;
  let code = "";
  try {
    const { error } = JSON.parse(text) as { error: { message: string; code: string } };
    ({ message, code } = error);
  } catch {
    // A proxy in front of the server answers in its own words.
  }
  if (response.status === 401) whenRefused();
  return new ApiError(message, response.status, code);
}

async function send(method: string, path: string, body?: string, signal?: AbortSignal, accept = "application/json"): Promise<Response> {
  try {
    return await fetch(path, { method, headers: { ...headers(body !== undefined), accept }, body, signal, cache: "no-store" });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new ApiError("the server does not answer", 0, "unreachable");
  }
}

/** `body` is a value, or the text of one where payloads must go as they were typed. */
export async function call<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const text = body === undefined ? undefined : body instanceof Raw ? body.text : JSON.stringify(body);
  const response = await send(method, path, text, signal);
  if (!response.ok) throw await refusal(response);
  const answer = parseAnswer(await response.text()) as T & { performance?: { server_total_ms?: number } };
  spent.ms += REQUEST_MS + (answer.performance?.server_total_ms ?? 0);
  return answer;
}

export async function callText(path: string, accept = "text/plain"): Promise<string> {
  const response = await send("GET", path, undefined, undefined, accept);
  if (!response.ok) throw await refusal(response);
  return response.text();
}

export const topicPath = (name: string, action = ""): string => `v0/topics/${encodeURIComponent(name)}${action}`;

export const topicState = (name: string, signal?: AbortSignal): Promise<TopicState> =>
  call("GET", topicPath(name, "?touch=false"), undefined, signal);

interface WireRecord {
  $seq: number;
  $ts: number;
  $tag?: string;
  $node?: string;
  data?: Raw;
  meta?: Raw;
}

const row = (record: WireRecord): RecordRow => ({
  seq: record.$seq,
  ts: record.$ts,
  tag: record.$tag,
  node: record.$node,
  data: record.data?.text ?? "null",
  meta: record.meta?.text,
});

export interface ReadOptions {
  limit?: number;
  max_batch_bytes?: number;
  [filter: string]: unknown;
}

/** Records after `from`, with their tags. */
export async function diff(name: string, from: number, options: ReadOptions = {}, signal?: AbortSignal): Promise<Page> {
  const body = { from_seq: Math.max(0, from), include_tags: true, ...options };
  const answer = await call<Omit<Page, "rows"> & { records: WireRecord[] }>("POST", topicPath(name, "/diff"), body, signal);
  return { ...answer, rows: answer.records.map(row) };
}

export interface Listed<T> {
  items: T[];
  done: boolean;
}

/** All pages of a list, told after each, so that the first is shown while the others come. */
export async function listAll<T>(path: string, field: string, query: Record<string, string>, told: (listed: Listed<T>) => void, signal: AbortSignal): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | undefined;
  let size = 200; // the first page is what is seen first
  do {
    const asked = new URLSearchParams({ ...query, page_size: String(size), ...(cursor ? { cursor } : {}) });
    const page = await call<Record<string, unknown> & { next_cursor?: string | null }>("GET", `${path}?${asked}`, undefined, signal);
    items.push(...(page[field] as T[]));
    cursor = page.next_cursor ?? undefined;
    size = 1000;
    told({ items, done: cursor === undefined });
  } while (cursor !== undefined);
  return items;
}

// --- streams -----------------------------------------------------------------------------------------------------------

export interface Watcher {
  records(rows: RecordRow[], headSeq: number): void;
  gap(gap: Gap): void;
  status(text: "live" | "connecting" | "deferred" | "deleted"): void;
}

const RETRY_MS = 500;

/** Follow a topic from a seq until the signal; a lost connection, or a server started anew, goes on where it was. */
export async function watch(name: string, from: number, watcher: Watcher, signal: AbortSignal): Promise<void> {
  let at = from;
  while (!signal.aborted) {
    try {
      watcher.status("connecting");
      const body = { topics: { [name]: { from_seq: at } }, include_tags: true };
      const session = await call<{ stream_url: string }>("POST", "v0/watch", body, signal);
      const response = await send("GET", session.stream_url.replace(/^\//, ""), undefined, signal, "text/event-stream");
      if (!response.ok || response.body === null) throw await refusal(response);
      watcher.status("live");
      for await (const [event, data] of frames(response.body)) {
        const frame = parseAnswer(data) as { records: WireRecord[]; to_seq: number; head_seq: number } & Gap;
        if (event === "record") {
          at = frame.to_seq;
          watcher.records(frame.records.map(row), frame.head_seq);
        } else if (event === "tombstone") {
          at = frame.reason === "recreated" ? frame.gap_from - 1 : frame.gap_to;
          watcher.gap(frame);
        } else if (event === "deferred") watcher.status("deferred");
        else if (event === "resumed") watcher.status("live");
        else if (event === "topic-deleted") return watcher.status("deleted");
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.isFinal) throw error;
    }
    if (!signal.aborted) await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

/** Frames of an event stream: name and data. The server sends each `data` as one line. */
async function* frames(body: ReadableStream<Uint8Array<ArrayBuffer>>): AsyncGenerator<[string, string]> {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
        const frame = rest.slice(0, end);
        rest = rest.slice(end + 2);
        let event = "";
        let data = "";
        for (const line of frame.split("\n")) {
          if (line.startsWith("event: ")) event = line.slice(7);
          else if (line.startsWith("data: ")) data = line.slice(6);
        }
        if (event && data) yield [event, data];
      }
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}
