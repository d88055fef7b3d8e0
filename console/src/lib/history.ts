/** The last values of many numbers, by name, with their times: for sparklines and for lines over time. */

export class History {
  private kept = new Map<string, { times: number[]; values: number[] }>();

  constructor(private readonly length = 60) {}

  /** A name that is not among `entries` is forgotten. */
  add(entries: Iterable<[string, number]>, now = Date.now()): void {
    const next = new Map<string, { times: number[]; values: number[] }>();
    const grown = (list: number[] | undefined, value: number): number[] => [...(list ?? []).slice(1 - this.length), value];
    for (const [name, value] of entries) {
      const before = this.kept.get(name);
      next.set(name, { times: grown(before?.times, now), values: grown(before?.values, value) });
    }
    this.kept = next;
  }

  of(name: string): number[] {
    return this.kept.get(name)?.values ?? [];
  }

  times(name: string): number[] {
    return this.kept.get(name)?.times ?? [];
  }
}
