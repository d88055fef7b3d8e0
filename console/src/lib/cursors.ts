/** Everybody who reads: named cursors, routers and queues, with how far behind they are (docs/spec/readers.md). */
import { listAll } from "./api.ts";
import type { Raw } from "./json.ts";

export interface Cursor {
  topic: string;
  cursor: string;
  kind: "cursor" | "router" | "queue";
  seq: number;
  lag: { records: number; bytes: number; ms: number };
  updated_ts: number | null;
  fence?: number;
  owner?: string;
  hold?: Record<string, number> | null;
  meta?: Raw;
}

export const listCursors = (signal: AbortSignal): Promise<Cursor[]> => listAll<Cursor>("v0/cursors", "cursors", {}, () => undefined, signal);

export const cursorKey = ({ topic, kind, cursor }: Cursor): string => `${topic}\n${kind}\n${cursor}`;

/** What its owner noted, if it is an object. */
export function cursorMeta(cursor: Cursor): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(cursor.meta?.text ?? "{}");
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

export const lags = (cursors: Cursor[]): [string, number][] => cursors.map((cursor) => [cursorKey(cursor), cursor.lag.records]);
