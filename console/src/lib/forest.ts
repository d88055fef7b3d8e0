/**
 * Where topics and routers are drawn. A topic has one source at most, so routers make trees from left to right; in a cycle the first
 * topic by name stands left.
 */
import type { Router } from "./api.ts";

export interface Placed {
  topic: string;
  column: number;
  row: number; // halves are possible: a source stands in the middle of what it feeds
}

export interface Drawing {
  topics: Map<string, Placed>;
  columns: number;
  rows: number;
}

export function arrange(routers: Router[]): Drawing {
  const fed = new Map<string, string[]>();
  const dests = new Set<string>();
  for (const { source, dest } of routers) {
    const list = fed.get(source) ?? [];
    if (!list.includes(dest)) fed.set(source, [...list, dest]);
    dests.add(dest);
  }
  const topics = new Map<string, Placed>();
  let rows = 0;
  let columns = 0;
  const place = (topic: string, column: number): number => {
    const mine: Placed = { topic, column, row: -1 };
    topics.set(topic, mine);
    columns = Math.max(columns, column + 1);
    const below = (fed.get(topic) ?? []).filter((dest) => !topics.has(dest)).map((dest) => (topics.has(dest) ? -1 : place(dest, column + 1))).filter((row) => row >= 0);
    mine.row = below.length ? ((below[0] as number) + (below.at(-1) as number)) / 2 : rows++;
    return mine.row;
  };
  const sources = [...fed.keys()].sort();
  for (const source of sources) if (!dests.has(source)) place(source, 0);
  for (const source of sources) if (!topics.has(source)) place(source, 0);
  return { topics, columns, rows };
}
