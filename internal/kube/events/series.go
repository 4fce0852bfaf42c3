// SPDX-License-Identifier: Apache-2.0

package events

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// seriesKey identifies a series of repeated Events.
type seriesKey struct {
	object corev1.ObjectReference
	reason string
	note   string
}

// series is a written Event that may be repeated.
type series struct {
	name    string // the Event's name
	count   int32
	last    time.Time // time of the last occurrence
	written time.Time // time of the last write
	dirty   bool      // the Event occurred after the last write
}

func (s *series) seen(at time.Time) {
	s.count++
	s.last = at
	s.dirty = true
}

// bucketKey identifies an allowance of different notes.
type bucketKey struct {
	object corev1.ObjectReference
	reason string
}

// bucket is an allowance of notes, as a token bucket.
type bucket struct {
	tokens float64
	at     time.Time
}

func (b *bucket) fill(now time.Time) {
	b.tokens = min(burst, b.tokens+now.Sub(b.at).Seconds()/refill.Seconds())
	b.at = now
}

// allow takes a token from the bucket, and reports whether the bucket had a token.
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

// makeRoom drops the oldest entry if the map has maxKept entries.
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

// forget removes series and buckets that have expired.
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
