import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call } from "../lib/api.ts";
import { jsonProblem, Raw } from "../lib/json.ts";
import { Button, Field } from "../ui/bits.tsx";
import { Dialog } from "../ui/dialog.tsx";
import { say, sayError } from "../ui/toast.tsx";

export const schedulePath = (name: string, action = ""): string => `v0/schedules/${encodeURIComponent(name)}${action}`;

export function CreateSchedule({ topic, onClose }: { topic: string; onClose: () => void }): JSX.Element {
  const [given, setGiven] = useState({ name: "", topic, how: "cron", cron: "0 3 * * *", timezone: "UTC", seconds: "60", tag: "", missed: "one", data: "{}" });
  const problem = jsonProblem(given.data);
  const make = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (problem) return;
    const times = given.how === "cron" ? { cron: given.cron, timezone: given.timezone } : { every_ms: Math.round(Number(given.seconds) * 1000) };
    const fields = JSON.stringify({ topic: given.topic, missed: given.missed, ...times, ...(given.tag ? { tag: given.tag } : {}) });
    try {
      await call("PUT", schedulePath(given.name), new Raw(`${fields.slice(0, -1)},"data":${given.data}}`)); // the data as it was typed
      say(`${given.name} created`);
      onClose();
    } catch (error) {
      sayError(error);
    }
  };
  const input = (key: keyof typeof given, required = true): JSX.Element => <input value={given[key]} required={required} autocomplete="off" spellcheck={false} onInput={(event) => setGiven({ ...given, [key]: event.currentTarget.value })} />;
  const select = (key: keyof typeof given, options: [string, string][]): JSX.Element => (
    <select value={given[key]} onChange={(event) => setGiven({ ...given, [key]: event.currentTarget.value })}>
      {options.map(([value, text]) => (
        <option key={value} value={value}>
          {text}
        </option>
      ))}
    </select>
  );
  return (
    <Dialog title="New schedule" onClose={onClose}>
      <form onSubmit={make}>
        <div class="fields">
          <Field label="Name">{input("name")}</Field>
          <Field label="Appends to the topic">{input("topic")}</Field>
          <Field label="Times">
            {select("how", [
              ["cron", "by a cron text"],
              ["every", "at an interval"],
            ])}
          </Field>
          {given.how === "cron" ? <Field label="Cron" hint="minute hour day month weekday">{input("cron")}</Field> : <Field label="Every so many seconds">{input("seconds")}</Field>}
          {given.how === "cron" && <Field label="Time zone">{input("timezone")}</Field>}
          <Field label="Runs that were missed">
            {select("missed", [
              ["one", "make up for the last one"],
              ["all", "make up for each"],
              ["skip", "leave them out"],
            ])}
          </Field>
          <Field label="Tag" hint="may be empty">
            {input("tag", false)}
          </Field>
        </div>
        <Field label="Data, any JSON" error={problem}>
          <textarea rows={3} value={given.data} spellcheck={false} onInput={(event) => setGiven({ ...given, data: event.currentTarget.value })} />
        </Field>
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" kind="primary" disabled={problem !== null}>
            Create
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}
