// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/ownnode"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// FieldManager is the patcher's name in the Node's managedFields.
const FieldManager = "extended-resource-patcher"

const (
	// pollInterval bounds the delay until the patcher notices a missing report. reportInterval
	// bounds the delay until the patcher reads a new report: meanwhile, the scheduler binds pods by
	// the Node's old resources. In the mode fit, each pod waits for the report of the last binding.
	pollInterval      = time.Second
	reportInterval    = 50 * time.Millisecond
	fitReportInterval = 10 * time.Millisecond
	patchTimeout      = 5 * time.Second
	// stuckAfter is the time that an iteration of the loop may take before the liveness probe
	// fails.
	stuckAfter = 30 * time.Second
)

// Options configure a Patcher.
type Options struct {
	Client   kubernetes.Interface
	NodeName string
	Config   config.Config
	// Moved, if set, reports whether a Node with these labels needs another configuration. Run then
	// returns.
	Moved      func(labels map[string]string) bool
	ReportPath string
	// StaleAfter is the age of the agent's heartbeat after which the patcher withdraws the
	// resources.
	StaleAfter time.Duration
	Log        *slog.Logger
}

// Patcher keeps one Node's extended resources in line with the agent's report.
type Patcher struct {
	opts    Options
	claimed sets.Set[string]
	reports reportReader
	node    *mirror
	pace    *pace
	metrics *metrics

	applied *offer        // the last write of this process; nil before the first write
	listed  string        // the list of GPUs of the last write that changed it; "" is none
	said    loop.Failures // by topic
	volcano registration
	// taintAfter is the earliest time of the next write of a taint.
	taintAfter time.Time

	mu    sync.Mutex
	state state
}

// offer consists of the Node's resources, and of its labels for the mode fit.
type offer struct {
	resources Resources
	labels    map[string]string
}

func (o offer) equal(p offer) bool {
	return maps.Equal(o.resources, p.resources) && maps.Equal(o.labels, p.labels)
}

// state is the loop's state for health, readiness and metrics.
type state struct {
	turn       time.Time // of the loop's last iteration
	observed   Observation
	desired    Resources
	advertised Resources
	problem    string // why the Node is not as desired; "" if the Node is as desired
}

// NewClient returns a client of the API server for a Patcher, which may write the Node after each
// report.
func NewClient(api *rest.Config) (kubernetes.Interface, error) {
	api = rest.CopyConfig(api)
	api.QPS, api.Burst = nodereport.PerSecond, 2*nodereport.PerSecond
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("make a Kubernetes client: %w", err)
	}
	return client, nil
}

// New validates the options and returns a Patcher.
func New(opts Options) (*Patcher, error) {
	switch {
	case opts.Client == nil:
		return nil, errors.New("no Kubernetes client")
	case opts.NodeName == "":
		return nil, errors.New("no node name")
	case opts.ReportPath == "":
		return nil, errors.New("no path of the agent's report")
	case opts.StaleAfter <= 0:
		return nil, fmt.Errorf("stale-after must be positive, not %s", opts.StaleAfter)
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	p := &Patcher{
		opts:    opts,
		claimed: enabledNames(opts.Config.Dialects),
		reports: reportReader{path: opts.ReportPath},
		node:    newMirror(),
		pace:    newPace(),
		state:   state{problem: "starting"},
	}
	p.metrics = newMetrics(opts.NodeName, p.snapshot)
	return p, nil
}

// Run reconciles the Node until ctx ends or the Node needs another configuration. Run does not change the Node when ctx ends: a patcher
// that another patcher replaces must not withdraw the resources.
func (p *Patcher) Run(ctx context.Context) {
	go p.reflector().RunWithContext(ctx)
	poll, look := time.NewTicker(pollInterval), time.NewTicker(lookInterval(p.opts.Config.Scheduling))
	defer poll.Stop()
	defer look.Stop()
	for {
		if node, _ := p.node.get(); node != nil && p.opts.Moved != nil && p.opts.Moved(node.Labels) {
			return
		}
		var retry <-chan time.Time
		if d := p.sync(ctx); d > 0 {
			retry = time.After(d)
		}
		if !p.wait(ctx, poll.C, look.C, retry) {
			return
		}
	}
}

// lookInterval returns the time between two checks of the report's file.
func lookInterval(s config.Scheduling) time.Duration {
	if s.Fit() {
		return fitReportInterval
	}
	return reportInterval
}

// wait waits until the Node or the report has changed, or until poll or retry fires. wait returns
// false if ctx ends first.
func (p *Patcher) wait(ctx context.Context, poll, look, retry <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-p.node.changed:
			return true
		case <-poll:
			return true
		case <-retry:
			return true
		case <-look:
			if p.reports.changed() {
				return true
			}
		}
	}
}

// reflector watches only the patcher's Node. After an outage of the API server,
// the reflector reconnects within seconds; client-go's default takes 30 to 60
// s.
func (p *Patcher) reflector() *cache.Reflector {
	nodes := p.opts.Client.CoreV1().RESTClient()
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, p.opts.NodeName)
	return cache.NewReflectorWithOptions(
		cache.NewListWatchFromClient(nodes, "nodes", metav1.NamespaceAll, only),
		&corev1.Node{}, p.node,
		cache.ReflectorOptions{
			Name:    "node",
			Backoff: &wait.Backoff{Duration: retryFirst, Factor: 2, Steps: 10, Cap: retryCap / 2, Jitter: 0.5},
		})
}

// sync compares the Node with the report once, and writes if necessary. sync returns the time that
// a due write must wait, or 0.
func (p *Patcher) sync(ctx context.Context) time.Duration {
	now := time.Now()
	observed, err := p.reports.observe(now)
	p.logOnce("report", err)
	node, synced := p.node.get()
	if node == nil {
		p.metrics.reconciles.WithLabelValues(resultUnknown).Inc()
		p.publish(state{turn: now, observed: observed, problem: absence(p.opts.NodeName, synced)})
		return 0
	}
	desired, why := Desired(observed, p.opts.Config, node.Labels, p.opts.StaleAfter, now)
	unsure := undecided(observed, p.opts.StaleAfter, now)
	want := offer{desired, nil}
	if unsure {
		want = p.kept(node)
		desired = want.resources
	} else {
		want.labels = desiredLabels(observed, p.opts.Config, desired)
	}
	patch := Plan(node, desired, p.claimed)
	patch.Labels = planLabels(node, want.labels)
	if !notUnderstood(observed, p.opts.StaleAfter, now) {
		patch.Condition = changed(node, condition(observed, node, p.opts.StaleAfter, now), now)
		patch.Annotations = p.volcano.plan(node, observed, desired, p.opts.Config, now)
	}
	if !unsure {
		planGPUs(node, observed, desired, p.opts.Config, patch.Annotations)
	}
	node, delay, problem := p.converge(ctx, node, want, patch, observed, why)
	p.keepTaint(ctx, node, observed, now)
	p.publish(state{turn: now, observed: observed, desired: desired, advertised: advertised(node, desired), problem: problem})
	return delay
}

// converge writes the desired state to the Node. converge returns the resulting
// Node. If the Node is not as desired, converge also returns the delay before a
// retry and the reason.
func (p *Patcher) converge(ctx context.Context, node *corev1.Node, want offer, patch Patch, observed Observation, why string) (*corev1.Node, time.Duration, string) {
	if patch.Empty() {
		p.metrics.reconciles.WithLabelValues(resultUnchanged).Inc()
		p.pace.succeeded()
		p.applied = &want
		return node, 0, ""
	}
	reason := p.reason(patch, want)
	if d := p.pace.wait(reason == reasonRestore, time.Now()); d > 0 {
		p.metrics.reconciles.WithLabelValues(resultDeferred).Inc()
		p.logContested(reason, node, patch)
		return node, d, "a write is due and waits for the rate limit"
	}
	patched, err := p.write(ctx, patch)
	p.logOnce("patch", err)
	if err != nil {
		p.metrics.failures.Inc()
		p.metrics.reconciles.WithLabelValues(resultFailed).Inc()
		now := time.Now()
		p.pace.failed(now)
		return node, p.pace.wait(false, now), err.Error()
	}
	p.applied = &want
	if gpus, changed := patch.Annotations[assign.GPUsAnnotation]; changed {
		p.listed = listed(gpus)
	}
	p.pace.succeeded()
	p.volcano.written(patch.Annotations, observed, time.Now())
	p.metrics.reconciles.WithLabelValues(resultWritten).Inc()
	p.logWritten(reason, why, want.resources, patch)
	return patched, 0, ""
}

// kept returns the resources and labels on the Node that the patcher advertised.
func (p *Patcher) kept(node *corev1.Node) offer {
	if p.applied != nil {
		return *p.applied
	}
	kept := Resources{}
	for name := range p.claimed.Intersection(parseAdvertised(node.Annotations[ownnode.Advertised])) {
		if quantity := node.Status.Allocatable[corev1.ResourceName(name)]; quantity.Value() > 0 {
			kept[name] = quantity.Value()
		}
	}
	labels := maps.Clone(node.Labels)
	maps.DeleteFunc(labels, func(name, _ string) bool { return !isFitLabel(name) })
	return offer{kept, labels}
}

// advertised returns the Node's current units of the desired resources.
func advertised(node *corev1.Node, desired Resources) Resources {
	have := Resources{}
	for name := range desired {
		if quantity, ok := node.Status.Allocatable[corev1.ResourceName(name)]; ok {
			have[name] = quantity.Value()
		}
	}
	return have
}

// write sends the patch and stores the answer in the mirror.
func (p *Patcher) write(ctx context.Context, patch Patch) (*corev1.Node, error) {
	body, err := patch.JSON()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	node, err := p.opts.Client.CoreV1().Nodes().Patch(ctx, p.opts.NodeName, types.StrategicMergePatchType, body,
		metav1.PatchOptions{FieldManager: FieldManager}, "status")
	if err != nil {
		return nil, fmt.Errorf("patch the status of node %q: %w", p.opts.NodeName, err)
	}
	p.node.observe(node)
	return node, nil
}

// These constants are the reasons of a write, as the metric's label.
const (
	reasonAdvertise   = "advertise"   // the agent's report changed, or this process is new
	reasonRestore     = "restore"     // another writer changed the resources or the list of GPUs
	reasonWithdraw    = "withdraw"    // the patcher may advertise nothing
	reasonCondition   = "condition"   // only the Node's condition changes
	reasonAnnotations = "annotations" // only the annotations for schedulers change
)

func (p *Patcher) reason(patch Patch, want offer) string {
	switch {
	case patch.onlyCondition():
		return reasonCondition
	case patch.onlyAnnotations() && p.restoresGPUs(patch):
		return reasonRestore
	case patch.onlyAnnotations():
		return reasonAnnotations
	case p.applied != nil && p.applied.equal(want):
		return reasonRestore
	case len(want.resources) == 0:
		return reasonWithdraw
	}
	return reasonAdvertise
}

// restoresGPUs reports whether a patch only restores the list of GPUs that this process wrote last.
// Answers to Volcano's scheduler are not restores, since the scheduler waits for the answers.
func (p *Patcher) restoresGPUs(patch Patch) bool {
	gpus, changes := patch.Annotations[assign.GPUsAnnotation]
	return changes && len(patch.Annotations) == 1 && p.applied != nil && listed(gpus) == p.listed
}

// listed returns the value of a list of GPUs; an absent list is "".
func listed(gpus *string) string {
	if gpus == nil {
		return ""
	}
	return *gpus
}

func absence(node string, synced bool) string {
	if synced {
		return fmt.Sprintf("there is no node %q", node)
	}
	return "the API server has not answered yet"
}

func (p *Patcher) logWritten(reason, why string, desired Resources, patch Patch) {
	p.metrics.patches.WithLabelValues(reason).Inc()
	p.logOnce("contested", nil)
	attrs := []any{"node", p.opts.NodeName, "resources", strings.Join(patch.Resources(), ",")}
	if len(patch.Labels) > 0 {
		attrs = append(attrs, "labels", len(patch.Labels))
	}
	switch reason {
	case reasonCondition:
		p.opts.Log.Info("changed the node's condition", "node", p.opts.NodeName, "status", patch.Condition.Status,
			"reason", patch.Condition.Reason, "message", patch.Condition.Message)
	case reasonAnnotations:
		p.opts.Log.Debug("wrote annotations for schedulers", "node", p.opts.NodeName,
			"annotations", strings.Join(slices.Sorted(maps.Keys(patch.Annotations)), ","))
	case reasonRestore:
		p.metrics.drifts.Inc()
		p.opts.Log.Warn("restored the node's resources after another writer's change",
			append(attrs, "annotations", len(patch.Annotations))...)
	case reasonWithdraw:
		p.opts.Log.Warn("withdrew the node's resources", append(attrs, "why", why)...)
	default:
		p.opts.Log.Info("advertised the node's resources", append(attrs, "desired", desired)...)
	}
}

var errContested = errors.New("found another program that keeps changing the node's resources; restoring them more slowly")

func (p *Patcher) logContested(reason string, node *corev1.Node, patch Patch) {
	if reason != reasonRestore {
		return
	}
	p.logOnce("contested", errContested,
		"node", node.Name, "resources", strings.Join(patch.Resources(), ","), "writer", lastWriter(node))
}

// logOnce logs each new error on a topic once.
func (p *Patcher) logOnce(topic string, err error, attrs ...any) {
	if p.said.Note(topic, err) == loop.Failed {
		p.opts.Log.Warn(err.Error(), attrs...)
	}
}

// lastWriter returns the newest other writer of the Node's status according to
// managedFields.
func lastWriter(node *corev1.Node) string {
	var newest metav1.ManagedFieldsEntry
	for _, entry := range node.ManagedFields {
		if entry.Subresource != "status" || entry.Manager == FieldManager {
			continue
		}
		if newest.Time == nil || (entry.Time != nil && newest.Time.Before(entry.Time)) {
			newest = entry
		}
	}
	return newest.Manager
}
