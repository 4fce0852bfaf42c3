package events

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// seriesKey tells events apart.
type seriesKey struct {
	object corev1.ObjectReference
	reason string
	note   string
}

// series is an Event that was written and may go on.
type series struct {
	name    string // of the Event
	count   int32
	last    time.Time // when it last happened
	written time.Time // when the API server was last told
	dirty   bool      // it happened since
}

func (s *series) seen(at time.Time) {
	s.count++
	s.last = at
	s.dirty = true
}

// bucketKey is what shares one allowance of different notes.
type bucketKey struct {
	object corev1.ObjectReference
	reason string
}

// bucket holds what may be written at once.
type bucket struct {
	tokens float64
	at     time.Time
}

func (b *bucket) fill(now time.Time) {
	b.tokens = min(burst, b.tokens+now.Sub(b.at).Seconds()/refill.Seconds())
	b.at = now
}

// allow takes a token.
func (r *Recorder) allow(key bucketKey, now time.Time) bool {
	b, ok := r.buckets[key]
	if !ok {
		makeRoom(r.buckets, func(b *bucket) time.Time { return b.at })
		b = &bucket{tokens: burst, at: now}
		r.buckets[key] = b
	}
	b.fill(now)
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// makeRoom drops the oldest entry if there are as many as may be.
func makeRoom[K comparable, V any](all map[K]V, at func(V) time.Time) {
	if len(all) < maxKept {
		return
	}
	var oldest K
	var since time.Time
	for key, value := range all {
		if when := at(value); since.IsZero() || when.Before(since) {
			oldest, since = key, when
		}
	}
	delete(all, oldest)
}

// forget drops what would be as new.
func (r *Recorder) forget(now time.Time) {
	for key, s := range r.series {
		if now.Sub(s.last) >= forgetAfter {
			delete(r.series, key)
		}
	}
	for key, b := range r.buckets {
		if b.fill(now); b.tokens == burst {
			delete(r.buckets, key)
		}
	}
}
