/**
 * Asking again and again without being a burden. After each round the console waits until it has used at most half a percent of
 * the server's time, and nothing is asked while the tab is hidden.
 */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, spent } from "./api.ts";

const SHARE = 0.005;
export const POLL_MS = 2000;

export interface Polled<T> {
  value: T | undefined;
  error: ApiError | undefined;
  again: () => void;
}

function whenVisible(signal: AbortSignal): Promise<void> {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", () => !document.hidden && resolve(), { signal });
  });
}

/** `ask` may tell of parts before it is done, by `tell`. It is asked anew when one of `deps` changes. */
export function usePoll<T>(ask: (signal: AbortSignal, tell: (part: T) => void) => Promise<T>, deps: unknown[], everyMs = POLL_MS): Polled<T> {
  const [value, setValue] = useState<T>();
  const [error, setError] = useState<ApiError>();
  const wake = useRef<() => void>(() => undefined);
  useEffect(() => {
    const ended = new AbortController();
    setValue(undefined);
    setError(undefined);
    void (async () => {
      while (!ended.signal.aborted) {
        const before = spent.ms;
        try {
          const answer = await ask(ended.signal, (part) => ended.signal.aborted || setValue(part));
          if (ended.signal.aborted) return;
          setValue(answer);
          setError(undefined);
        } catch (problem) {
          if (ended.signal.aborted) return;
          if (!(problem instanceof ApiError)) throw problem;
          setError(problem);
          if (problem.status === 401) return; // asked again after the sign-in, which mounts the view anew
        }
        const pause = Math.max(everyMs, (spent.ms - before) / SHARE);
        await new Promise<void>((resolve) => {
          const timer = setTimeout(resolve, pause);
          wake.current = () => {
            clearTimeout(timer);
            resolve();
          };
        });
        await whenVisible(ended.signal);
      }
    })();
    return () => {
      ended.abort();
      wake.current();
    };
  }, deps);
  return { value, error, again: () => wake.current() };
}

/** Changes of counters per second, by name, between one poll and the next. */
export class Rates {
  private last = new Map<string, number>();
  private at = 0;
  latest = new Map<string, number>();

  sample(counters: Iterable<[string, number]>, now = performance.now()): Map<string, number> {
    const seconds = (now - this.at) / 1000;
    if (this.at && seconds < 0.5) return this.latest;
    const next = new Map<string, number>();
    const found = new Map<string, number>();
    for (const [name, value] of counters) {
      next.set(name, value);
      const before = this.last.get(name);
      if (this.at && before !== undefined) found.set(name, Math.max(0, (value - before) / seconds));
    }
    this.last = next;
    this.at = now;
    this.latest = found;
    return found;
  }
}

/** The time, once a second, for ages and deadlines. */
export function useNow(everyMs = 1000): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

export function useDebounced<T>(value: T, ms = 200): T {
  const [kept, setKept] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setKept(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return kept;
}
