// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"sync"

	"golang.org/x/time/rate"
)

// bounds are the limits on the connections of one kind.
type bounds struct {
	// all and each limit the open connections of all containers and of one container.
	all, each int
	// perSecond and burst limit the questions of a container.
	perSecond rate.Limit
	burst     int
}

// queue bounds the open connections and the rate of each container's questions. The zero value of
// queue is empty.
type queue struct {
	mu      sync.Mutex
	all     int
	waiting map[string]int           // by container
	paces   map[string]*rate.Limiter // by container
}

// enter takes a place if a place is free, and reports whether a place was free.
func (q *queue) enter(container string, b bounds) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.all >= b.all || q.waiting[container] >= b.each {
		return false
	}
	if q.waiting == nil {
		q.waiting = map[string]int{}
	}
	q.all++
	q.waiting[container]++
	return true
}

func (q *queue) leave(container string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all--
	if q.waiting[container]--; q.waiting[container] == 0 {
		delete(q.waiting, container)
	}
}

// mayAsk reports whether a container may currently ask, and counts the question.
func (q *queue) mayAsk(container string, b bounds) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	pace, ok := q.paces[container]
	if !ok {
		if q.paces == nil {
			q.paces = map[string]*rate.Limiter{}
		}
		pace = rate.NewLimiter(b.perSecond, b.burst)
		q.paces[container] = pace
	}
	return pace.Allow()
}

// sweep drops containers that have not asked lately.
func (q *queue) sweep() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for container, pace := range q.paces {
		if pace.Tokens() >= float64(pace.Burst()) {
			delete(q.paces, container)
		}
	}
}

// open returns the number of open connections.
func (q *queue) open() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all
}
