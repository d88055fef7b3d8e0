"""Schedules, which append records by the clock.

schedule          as state, log and snapshot have them
schedule_answers  as callers are shown them"""
