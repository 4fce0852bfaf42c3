// Package events writes Kubernetes Events about pods and the own node, for
// people to act on. It never keeps its callers waiting: what cannot be
// written, as the API server is away or as there is too much of it, is dropped
// and counted.
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

// Controller is what Events name as their reporter.
const Controller = "nri-vgpu.io/agent"

const (
	// queueLength is how many events may wait to be written.
	queueLength = 256
	// writeTimeout bounds one write; while the API server is away every
	// event costs that much, and those that come meanwhile are dropped.
	writeTimeout = 5 * time.Second
	// repeatInterval is how often the count of an event that goes on is
	// brought up to date.
	repeatInterval = time.Minute
	// forgetAfter is when an event that comes again is a new one: the API
	// server keeps them for an hour unless told otherwise.
	forgetAfter = 30 * time.Minute
	// burst different notes of one reason on one object are written at
	// once, then one per refill.
	burst  = 5
	refill = time.Minute
	// maxKept bounds the events whose count may grow, and the allowances of different
	// notes: tenants can make pods that are refused as fast as they like. Of too many
	// the one goes of which nothing was heard for longest; it begins anew.
	maxKept = 4096
	// maxNote is what the API server takes.
	maxNote = 1024
)

// Options of a Recorder.
type Options struct {
	// Client writes; it should have a rate limiter of its own, as reads must
	// not wait behind Events.
	Client kubernetes.Interface
	// Node is the name of the own node.
	Node string
	Log  *slog.Logger
}

// Recorder writes Events. A nil Recorder writes none.
type Recorder struct {
	Options
	queue   chan event
	metrics metrics
	series  map[seriesKey]*series
	buckets map[bucketKey]*bucket
}

// New gives a recorder that writes nothing until Run.
func New(opts Options) *Recorder {
	return &Recorder{
		Options: opts,
		queue:   make(chan event, queueLength),
		metrics: newMetrics(),
		series:  map[seriesKey]*series{},
		buckets: map[bucketKey]*bucket{},
	}
}

// Pod is a pod as the API server names it. A static pod has the UID of its
// mirror there, which is not the runtime's.
type Pod struct {
	Namespace, Name string
	UID             types.UID
}

// OnPod writes an Event about a pod. It never blocks.
func (r *Recorder) OnPod(pod Pod, reason Reason, format string, args ...any) {
	r.put(corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
	}, reason, format, args)
}

// OnNode writes an Event about the own node. It never blocks.
func (r *Recorder) OnNode(reason Reason, format string, args ...any) {
	if r == nil {
		return
	}
	// Not the Node's UID but its name, as kubelet does: kubectl describe
	// looks for that.
	r.put(corev1.ObjectReference{
		APIVersion: "v1", Kind: "Node", Name: r.Node, UID: types.UID(r.Node),
	}, reason, format, args)
}

// event is one thing that was noticed.
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

// shorten cuts a note to what the API server takes.
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

// Run writes until ctx ends.
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

// record writes an event that is new, and counts one that goes on.
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
		r.Log.Debug("an event could not be written", "reason", e.reason.Name, "error", err)
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
		// A name of our own, so that a write that is sent twice is one Event.
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

// home is the namespace of the Events about an object.
func home(object corev1.ObjectReference) string {
	if object.Namespace == "" {
		return metav1.NamespaceDefault
	}
	return object.Namespace
}

// eventName makes the name of an Event, at most 253 characters as names are.
func eventName(object string) string {
	id := strings.ToLower(rand.Text()[:16])
	return object[:min(len(object), 253-1-len(id))] + "." + id
}

// update writes the counts that have grown. What fails is tried again at the
// next call, and nothing is lost by it.
func (r *Recorder) update(ctx context.Context, now time.Time) {
	for key, s := range r.series {
		if !s.dirty || now.Sub(s.written) < repeatInterval {
			continue
		}
		err := r.patch(ctx, key, s)
		switch {
		case err == nil:
			s.dirty, s.written = false, now
		case apierrors.IsNotFound(err): // somebody deleted it, or its pod's namespace
			delete(r.series, key)
		default:
			r.Log.Debug("an event could not be brought up to date", "reason", key.reason, "error", err)
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
