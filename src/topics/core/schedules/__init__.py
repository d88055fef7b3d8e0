"""Schedules: records that are appended by the clock (`docs/spec/semantics.md#sec-16-18`).

    tick_times        when a schedule ticks: cron texts by the clock of a zone, and intervals
    schedule_changes  which ticks are due; a change of a schedule, applied

Pure but for the files of the zone database, which are read once for each zone."""
