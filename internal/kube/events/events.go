// SPDX-License-Identifier: Apache-2.0

// Package events writes Kubernetes Events about pods and the agent's node, on which people act. The
// package never blocks its callers. The package drops and counts Events that it cannot write
// because the API server is unavailable, or because too many Events arrive.
package events

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Controller is the name of the Events' reporter.
const Controller = "nri-vgpu.io/agent"

const (
	// queueLength is the number of Events that may wait to be written.
	queueLength = 256
	// writeTimeout bounds one write. While the API server is unavailable, every Event costs
	// writeTimeout, and the recorder drops Events that do not fit into the queue.
	writeTimeout = 5 * time.Second
	// repeatInterval is the shortest time between two updates of a repeated Event's count.
	repeatInterval = time.Minute
	// forgetAfter is the age at which a repeated Event counts as new. By default, the API server
	// keeps Events for an hour.
	forgetAfter = 30 * time.Minute
	// burst is the number of different notes of one reason on one object that are written at once.
	// After the burst, the recorder writes one note per refill.
	burst  = 5
	refill = time.Minute
	// maxKept bounds the series of repeated Events, and the allowances of different notes, because
	// tenants can create refused pods at any rate. At maxKept entries, a new entry replaces the
	// least recently used entry.
	maxKept = 4096
	// maxNote is the API server's limit on the length of a note, in bytes.
	maxNote = 1024
)

// Options configures a Recorder.
type Options struct {
	// Client writes the Events. Client should have a separate rate limiter, so that reads do not
	// wait behind Events.
	Client kubernetes.Interface
	// Node is the name of the agent's node.
	Node string
	Log  *slog.Logger
}

// Recorder writes Events. A nil Recorder writes no Events.
type Recorder struct {
	Options
	queue   chan event
	metrics metrics
	series  map[seriesKey]*series
	buckets map[bucketKey]*bucket
}

// New returns a recorder that writes nothing until Run.
func New(opts Options) *Recorder {
	return &Recorder{
		Options: opts,
		queue:   make(chan event, queueLength),
		metrics: newMetrics(),
		series:  map[seriesKey]*series{},
		buckets: map[bucketKey]*bucket{},
	}
}

// Pod is a pod as the API server names it. For a static pod, UID is the mirror's UID, which differs
// from the runtime's UID.
type Pod struct {
	Namespace, Name string
	UID             types.UID
}

// OnPod queues an Event about a pod. OnPod never blocks.
func (r *Recorder) OnPod(pod Pod, reason Reason, format string, args ...any) {
	r.put(corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
	}, reason, format, args)
}

// OnNode queues an Event about the agent's node. OnNode never blocks.
func (r *Recorder) OnNode(reason Reason, format string, args ...any) {
	if r == nil {
		return
	}
	// The UID is the Node's name, as in kubelet's Events: kubectl describe searches for that name.
	r.put(corev1.ObjectReference{
		APIVersion: "v1", Kind: "Node", Name: r.Node, UID: types.UID(r.Node),
	}, reason, format, args)
}

// event is one occurrence of an Event.
type event struct {
	object corev1.ObjectReference
	reason Reason
	note   string
	at     time.Time
}

func (r *Recorder) put(object corev1.ObjectReference, reason Reason, format string, args []any) {
	if r == nil {
		return
	}
	e := event{object, reason, shorten(fmt.Sprintf(format, args...)), time.Now()}
	select {
	case r.queue <- e:
	default:
		r.metrics.drop(causeQueue)
	}
}

// shorten cuts a note to at most maxNote bytes.
func shorten(note string) string {
	if len(note) <= maxNote {
		return note
	}
	const mark = "…"
	end := maxNote - len(mark)
	for !utf8.RuneStart(note[end]) {
		end--
	}
	return note[:end] + mark
}

// Run writes the queued Events until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	tick := time.NewTicker(repeatInterval / 4)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case e := <-r.queue:
			r.record(ctx, e)
		case now := <-tick.C:
			r.update(ctx, now)
			r.forget(now)
		}
	}
}

// record writes a new Event, or counts a repeated Event.
func (r *Recorder) record(ctx context.Context, e event) {
	key := seriesKey{e.object, e.reason.Name, e.note}
	if s, ok := r.series[key]; ok && e.at.Sub(s.written) < forgetAfter {
		s.seen(e.at)
		return
	}
	if !r.allow(bucketKey{e.object, e.reason.Name}, e.at) {
		r.metrics.drop(causeRate)
		return
	}
	name, err := r.create(ctx, e)
	if err != nil {
		r.metrics.drop(causeAPI)
		r.Log.Debug("failed to write an event", "reason", e.reason.Name, "error", err)
		return
	}
	r.metrics.wrote(e.reason)
	makeRoom(r.series, func(s *series) time.Time { return s.last })
	r.series[key] = &series{name: name, count: 1, last: e.at, written: e.at}
}

func (r *Recorder) create(ctx context.Context, e event) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	namespace := home(e.object)
	created, err := r.Client.EventsV1().Events(namespace).Create(ctx, &eventsv1.Event{
		// With an explicit name, a retried write does not create a second Event.
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: eventName(e.object.Name)},
		EventTime:           metav1.NewMicroTime(e.at),
		ReportingController: Controller,
		ReportingInstance:   r.Node,
		Action:              e.reason.Action,
		Reason:              e.reason.Name,
		Type:                e.reason.Type,
		Regarding:           e.object,
		Note:                e.note,
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return created.Name, nil
}

// home returns the namespace of the Events about an object.
func home(object corev1.ObjectReference) string {
	if object.Namespace == "" {
		return metav1.NamespaceDefault
	}
	return object.Namespace
}

// eventName returns a name for an Event, of at most 253 characters, as the API server requires.
func eventName(object string) string {
	id := strings.ToLower(rand.Text()[:16])
	return strings.TrimRight(object[:min(len(object), 253-1-len(id))], "-.") + "." + id
}

// update writes the counts that have grown. The next call retries failed updates, and no count is
// lost.
func (r *Recorder) update(ctx context.Context, now time.Time) {
	for key, s := range r.series {
		if !s.dirty || now.Sub(s.written) < repeatInterval {
			continue
		}
		err := r.patch(ctx, key, s)
		switch {
		case err == nil:
			s.dirty, s.written = false, now
		case apierrors.IsNotFound(err): // the Event, or its pod's namespace, was deleted
			delete(r.series, key)
		default:
			r.Log.Debug("failed to update an event", "reason", key.reason, "error", err)
			return
		}
	}
}

func (r *Recorder) patch(ctx context.Context, key seriesKey, s *series) error {
	body, err := json.Marshal(map[string]any{"series": eventsv1.EventSeries{
		Count: s.count, LastObservedTime: metav1.NewMicroTime(s.last),
	}})
	if err != nil {
		return fmt.Errorf("encode an event's series: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err = r.Client.EventsV1().Events(home(key.object)).
		Patch(ctx, s.name, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}
