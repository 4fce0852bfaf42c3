// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"container/heap"
	"time"
)

// clock runs events in the order of their times. Events with equal times run in the order of their
// creation.
type clock struct {
	now    time.Duration
	events events
	made   int
}

// after adds an event that runs do after the time d.
func (c *clock) after(d time.Duration, do func()) {
	c.made++
	heap.Push(&c.events, event{c.now + d, c.made, do})
}

// runUntil runs the events until a time, and keeps the later events.
func (c *clock) runUntil(end time.Duration) {
	for len(c.events) > 0 && c.events[0].at <= end {
		next := heap.Pop(&c.events).(event)
		c.now = next.at
		next.do()
	}
	c.now = end
}

// event is a function that the clock calls at a time.
type event struct {
	at     time.Duration
	number int
	do     func()
}

// events is a heap with the next event first.
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
