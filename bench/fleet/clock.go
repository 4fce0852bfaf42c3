// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"container/heap"
	"time"
)

// clock runs events in the order of their times, and of their making at equal times.
type clock struct {
	now    time.Duration
	events events
	made   int
}

// after lets something happen after a time.
func (c *clock) after(d time.Duration, do func()) {
	c.made++
	heap.Push(&c.events, event{c.now + d, c.made, do})
}

// runUntil runs the events until a time, and leaves the later ones.
func (c *clock) runUntil(end time.Duration) {
	for len(c.events) > 0 && c.events[0].at <= end {
		next := heap.Pop(&c.events).(event)
		c.now = next.at
		next.do()
	}
	c.now = end
}

// event is something that happens at a time.
type event struct {
	at     time.Duration
	number int
	do     func()
}

// events are a heap of events, the next first.
type events []event

func (e events) Len() int { return len(e) }

func (e events) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(e[i].at, e[j].at), cmp.Compare(e[i].number, e[j].number)) < 0
}

func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

func (e *events) Push(x any) { *e = append(*e, x.(event)) }

func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}
