/** The server's metrics in Prometheus' text form, as a map from name and labels to value. */

export class Metrics {
  private samples = new Map<string, number>();

  constructor(text: string) {
    for (const line of text.split("\n")) {
      if (line.startsWith("#") || line === "") continue;
      const cut = line.lastIndexOf(" ");
      this.samples.set(line.slice(0, cut), Number(line.slice(cut + 1)));
    }
  }

  /** The first of these names that the server has. */
  get(...names: string[]): number | undefined {
    for (const name of names) {
      const value = this.samples.get(name);
      if (value !== undefined) return value;
    }
    return undefined;
  }

  /** The sum over all labels of a name. */
  sum(...names: string[]): number | undefined {
    for (const name of names) {
      let total: number | undefined;
      for (const [key, value] of this.samples) if (key === name || key.startsWith(name + "{")) total = (total ?? 0) + value;
      if (total !== undefined) return total;
    }
    return undefined;
  }
}
