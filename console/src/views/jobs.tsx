/** The jobs of a queue by what is happening to them. */
import type { JSX } from "preact";
import type { TopicState } from "../lib/api.ts";
import { count } from "../lib/format.ts";
import { href } from "../lib/route.ts";
import { Stat } from "../ui/bits.tsx";

export function Jobs({ state }: { state: TopicState; query: URLSearchParams }): JSX.Element {
  const { queue, config } = state;
  const dead = config.dead_letter;
  return (
    <div class="scroll">
      <section class="stats" aria-label="Jobs">
        <Stat name="Ready" value={count(queue?.ready ?? 0)} hint="wait for a worker" />
        <Stat name="In flight" value={count(queue?.in_flight ?? 0)} hint="held by a worker" />
        <Stat name="Waiting" value={count(state.count - (queue?.ready ?? 0) - (queue?.in_flight ?? 0))} hint="for their time" />
        <Stat name="Dead" value={dead ? <a href={href(["topics", dead])}>{count(queue?.dead_lettered ?? 0)}</a> : count(queue?.dead_lettered ?? 0)} hint={dead ? `in ${dead}` : "no dead-letter topic"} tone={queue?.dead_lettered ? "warn" : undefined} />
      </section>
    </div>
  );
}
