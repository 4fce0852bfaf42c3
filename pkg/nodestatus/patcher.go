package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	"k8s.io/client-go/tools/cache"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// FieldManager names the patcher's writes in the Node's managedFields.
const FieldManager = "extended-resource-patcher"

const (
	// pollInterval bounds how late a new report, or a missing one, is seen.
	pollInterval = time.Second
	patchTimeout = 5 * time.Second
	// stuckAfter without a turn of the loop the process is not alive.
	stuckAfter = 30 * time.Second
)

// Options says what a Patcher keeps where.
type Options struct {
	Client     kubernetes.Interface
	NodeName   string
	Config     config.Config
	ReportPath string
	// StaleAfter is the age of the agent's heartbeat at which the
	// resources are withdrawn.
	StaleAfter time.Duration
	Log        *slog.Logger
}

// Patcher keeps one Node's extended resources as the agent's report says.
type Patcher struct {
	opts    Options
	claimed sets.Set[string]
	reports reportReader
	node    *mirror
	pace    *pace
	metrics *metrics

	applied *Resources // what this process last wrote; nil before
	said    map[string]string
	volcano registration
	// taintAfter is when a taint may be written again.
	taintAfter time.Time

	mu    sync.Mutex
	state state
}

// state is what health, readiness and metrics tell of the loop.
type state struct {
	turn       time.Time // of the loop's last turn
	observed   Observation
	desired    Resources
	advertised Resources
	problem    string // why the Node is not as it should be; "" if it is
}

// New checks the options and makes a Patcher.
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
		said:    map[string]string{},
		state:   state{problem: "starting"},
	}
	p.metrics = newMetrics(opts.NodeName, p.snapshot)
	return p, nil
}

// Run keeps the Node until ctx ends. On return the Node is left as it is: a
// patcher that is being replaced must not take the resources away.
func (p *Patcher) Run(ctx context.Context) {
	go p.reflector().RunWithContext(ctx)
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		var retry <-chan time.Time
		if d := p.sync(ctx); d > 0 {
			retry = time.After(d)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.node.changed:
		case <-poll.C:
		case <-retry:
		}
	}
}

// reflector watches the own Node alone. After an outage of the API server it
// is back within seconds rather than client-go's 30 to 60.
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

// sync compares once, and writes if it must. It returns how long to wait if a
// write is due but may not be sent yet.
func (p *Patcher) sync(ctx context.Context) time.Duration {
	now := time.Now()
	observed, err := p.reports.observe(now)
	p.sayError("report", err)
	node, synced := p.node.get()
	if node == nil {
		p.metrics.reconciles.WithLabelValues(resultUnknown).Inc()
		p.publish(state{turn: now, observed: observed, problem: absence(p.opts.NodeName, synced)})
		return 0
	}
	desired, why := Desired(observed, p.opts.Config, node.Labels, p.opts.StaleAfter, now)
	if undecided(observed, p.opts.StaleAfter, now) {
		desired = p.kept(node)
	}
	patch := Plan(node, desired, p.claimed)
	if !notUnderstood(observed, p.opts.StaleAfter, now) {
		patch.Condition = changed(node, condition(observed, node, p.opts.StaleAfter, now), now)
		patch.Volcano = p.volcano.plan(node, observed, desired, p.opts.Config, now)
	}
	node, delay, problem := p.converge(ctx, node, desired, patch, observed, why)
	p.keepTaint(ctx, node, observed, now)
	p.publish(state{turn: now, observed: observed, desired: desired, advertised: advertised(node, desired), problem: problem})
	return delay
}

// converge brings the Node to what is desired. It returns the Node as it then
// is; if that is not as desired, also when to try again and why.
func (p *Patcher) converge(ctx context.Context, node *corev1.Node, desired Resources, patch Patch, observed Observation, why string) (*corev1.Node, time.Duration, string) {
	if patch.Empty() {
		p.metrics.reconciles.WithLabelValues(resultUnchanged).Inc()
		p.pace.succeeded()
		p.applied = &desired
		return node, 0, ""
	}
	reason := p.reason(patch, desired)
	if d := p.pace.wait(reason == reasonRestore, time.Now()); d > 0 {
		p.metrics.reconciles.WithLabelValues(resultDeferred).Inc()
		p.sayContested(reason, node, patch)
		return node, d, "a write is due and waits for its turn"
	}
	patched, err := p.write(ctx, patch)
	p.sayError("patch", err)
	if err != nil {
		p.metrics.failures.Inc()
		p.metrics.reconciles.WithLabelValues(resultFailed).Inc()
		now := time.Now()
		p.pace.failed(now)
		return node, p.pace.wait(false, now), err.Error()
	}
	p.applied = &desired
	p.pace.succeeded()
	p.volcano.written(patch.Volcano, observed, time.Now())
	p.metrics.reconciles.WithLabelValues(resultWritten).Inc()
	p.sayWritten(reason, why, desired, patch)
	return patched, 0, ""
}

// kept is what the Node has of us.
func (p *Patcher) kept(node *corev1.Node) Resources {
	if p.applied != nil {
		return *p.applied
	}
	kept := Resources{}
	for name := range p.claimed.Intersection(parseAdvertised(node.Annotations[AdvertisedAnnotation])) {
		if quantity := node.Status.Allocatable[corev1.ResourceName(name)]; quantity.Value() > 0 {
			kept[name] = quantity.Value()
		}
	}
	return kept
}

// advertised are the desired resources as the Node has them.
func advertised(node *corev1.Node, desired Resources) Resources {
	have := Resources{}
	for name := range desired {
		if quantity, ok := node.Status.Allocatable[corev1.ResourceName(name)]; ok {
			have[name] = quantity.Value()
		}
	}
	return have
}

// write sends the patch and takes the answer into the mirror.
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

// Reasons of a write, as the metric has them.
const (
	reasonAdvertise = "advertise" // the agent's report changed, or this process is new
	reasonRestore   = "restore"   // somebody else changed what was there
	reasonWithdraw  = "withdraw"  // nothing may be advertised
	reasonCondition = "condition" // only that of the Node changes
	reasonVolcano   = "volcano"   // only what its scheduler reads changes
)

func (p *Patcher) reason(patch Patch, desired Resources) string {
	switch {
	case patch.onlyCondition():
		return reasonCondition
	case patch.onlyVolcano():
		return reasonVolcano
	case p.applied != nil && maps.Equal(*p.applied, desired):
		return reasonRestore
	case len(desired) == 0:
		return reasonWithdraw
	}
	return reasonAdvertise
}

func absence(node string, synced bool) string {
	if synced {
		return fmt.Sprintf("there is no node %q", node)
	}
	return "the API server has not answered yet"
}

func (p *Patcher) sayWritten(reason, why string, desired Resources, patch Patch) {
	p.metrics.patches.WithLabelValues(reason).Inc()
	delete(p.said, "contested")
	attrs := []any{"node", p.opts.NodeName, "resources", strings.Join(patch.Resources(), ",")}
	switch reason {
	case reasonCondition:
		p.opts.Log.Info("changed the node's condition", "node", p.opts.NodeName, "status", patch.Condition.Status,
			"reason", patch.Condition.Reason, "message", patch.Condition.Message)
	case reasonVolcano:
		p.opts.Log.Debug("answered Volcano's scheduler", "node", p.opts.NodeName)
	case reasonRestore:
		p.metrics.drifts.Inc()
		p.opts.Log.Warn("restored the node's resources after another writer's change", attrs...)
	case reasonWithdraw:
		p.opts.Log.Warn("withdrew the node's resources", append(attrs, "why", why)...)
	default:
		p.opts.Log.Info("advertised the node's resources", append(attrs, "desired", desired)...)
	}
}

func (p *Patcher) sayContested(reason string, node *corev1.Node, patch Patch) {
	if reason != reasonRestore {
		return
	}
	p.say("contested", "another program keeps changing the node's resources; restoring them more slowly",
		"node", node.Name, "resources", strings.Join(patch.Resources(), ","), "writer", lastWriter(node))
}

func (p *Patcher) sayError(topic string, err error) {
	if err == nil {
		delete(p.said, topic)
		return
	}
	p.say(topic, err.Error())
}

// say warns once for each new message on a topic.
func (p *Patcher) say(topic, message string, attrs ...any) {
	if p.said[topic] != message {
		p.said[topic] = message
		p.opts.Log.Warn(message, attrs...)
	}
}

// lastWriter names the newest writer of the Node's status but for ourselves,
// as managedFields has it.
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
