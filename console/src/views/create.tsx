import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call, topicPath } from "../lib/api.ts";
import { go, href } from "../lib/route.ts";
import { Button, Field } from "../ui/bits.tsx";
import { Dialog } from "../ui/dialog.tsx";
import { say, sayError } from "../ui/toast.tsx";

export function CreateTopic({ onClose }: { onClose: () => void }): JSX.Element {
  const [name, setName] = useState("");
  const [type, setType] = useState("log");
  const [durability, setDurability] = useState("disk");
  const [days, setDays] = useState("");
  const [cap, setCap] = useState("");
  const [deliveries, setDeliveries] = useState("5");
  const make = async (event: Event): Promise<void> => {
    event.preventDefault();
    const config: Record<string, unknown> = { type, durability };
    if (Number(days) > 0) config.ttl_ms = Math.round(Number(days) * 86_400_000);
    if (Number(cap) > 0) config.cap_records = Number(cap);
    if (type === "queue" && Number(deliveries) > 0) Object.assign(config, { max_deliveries: Number(deliveries), dead_letter: `${name}.dead` });
    try {
      await call("PUT", topicPath(name), config);
      say(`${name} created`);
      onClose();
      go(href(["topics", name]));
    } catch (error) {
      sayError(error);
    }
  };
  return (
    <Dialog title="New topic" onClose={onClose}>
      <form onSubmit={make}>
        <Field label="Name" hint="Letters, digits and . _ : - ; it begins with a letter or a digit">
          <input value={name} required pattern="[A-Za-z0-9][A-Za-z0-9._:\-]{0,254}" autocomplete="off" spellcheck={false} onInput={(event) => setName(event.currentTarget.value)} />
        </Field>
        <div class="fields">
          <Field label="Type">
            <select value={type} onChange={(event) => setType(event.currentTarget.value)}>
              <option value="log">log: readers keep their place</option>
              <option value="queue">queue: each job is done once</option>
            </select>
          </Field>
          <Field label="A write is acked when it is">
            <select value={durability} onChange={(event) => setDurability(event.currentTarget.value)}>
              <option value="fsync">on the disk (fsync)</option>
              <option value="disk">with the operating system (disk)</option>
              <option value="memory">soon in the log (memory)</option>
              <option value="ephemeral">in memory only (ephemeral)</option>
            </select>
          </Field>
          <Field label="Keep for days" hint="empty: for ever">
            <input type="number" min="0" step="any" value={days} onInput={(event) => setDays(event.currentTarget.value)} />
          </Field>
          <Field label="Keep at most records" hint="empty: all">
            <input type="number" min="0" value={cap} onInput={(event) => setCap(event.currentTarget.value)} />
          </Field>
          {type === "queue" && (
            <Field label="Deliveries of a job" hint={`then it goes to ${name || "…"}.dead; 0: without end`}>
              <input type="number" min="0" value={deliveries} onInput={(event) => setDeliveries(event.currentTarget.value)} />
            </Field>
          )}
        </div>
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary">
            Create
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}
