package registry

import (
	"sync"

	"golang.org/x/time/rate"
)

// queue bounds how many connections are open at a time, and how often each
// container asks. Its zero value is empty.
type queue struct {
	mu      sync.Mutex
	all     int
	waiting map[string]int           // by container
	paces   map[string]*rate.Limiter // by container
}

// enter takes a place, if there is one.
func (q *queue) enter(container string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.all >= maxWaiting || q.waiting[container] >= maxWaitingPerContainer {
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

// mayAsk tells whether a container may ask now.
func (q *queue) mayAsk(container string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	pace, ok := q.paces[container]
	if !ok {
		if q.paces == nil {
			q.paces = map[string]*rate.Limiter{}
		}
		pace = rate.NewLimiter(questionsPerSecond, questionBurst)
		q.paces[container] = pace
	}
	return pace.Allow()
}

// sweep forgets containers that have not asked lately.
func (q *queue) sweep() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for container, pace := range q.paces {
		if pace.Tokens() >= questionBurst {
			delete(q.paces, container)
		}
	}
}

// open is how many connections are.
func (q *queue) open() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all
}
