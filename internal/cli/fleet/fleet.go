// SPDX-License-Identifier: Apache-2.0

// Package fleet queries the agents of a cluster through its API server. The package runs vgpuctl in
// the agents' pods, as kubectl exec does, and parses the output. No port of a node has to be open,
// and the API server authorizes each user.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

const (
	// DefaultNamespace is the namespace of the agents in the manifest.
	DefaultNamespace = "nri-vgpu-system"
	// selector matches the pods of the agents and of the patcher.
	selector = "app.kubernetes.io/part-of=nri-vgpu"
	// container is the container that only the agents' pods have.
	container = "agent"
)

// scheme contains only the types that are requested from the API server. A client
// for all of Kubernetes' APIs would make vgpuctl, which every container gets,
// several times larger.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(s))
	metav1.AddToGroupVersion(s, schemaVersion)
	return s
}()

var (
	schemaVersion  = corev1.SchemeGroupVersion
	parameterCodec = runtime.NewParameterCodec(scheme)
)

// Fleet queries the agents of a cluster.
type Fleet struct {
	// Namespace is the namespace of the agents.
	Namespace string
	config    *rest.Config
	api       rest.Interface
	execs     struct {
		sync.Once
		allowed bool
	}
	token struct {
		sync.Mutex
		text  string
		renew time.Time
	}
}

// New returns the fleet of a cluster.
func New(config *rest.Config, namespace string) (*Fleet, error) {
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/api", &schemaVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.QPS = -1 // a user waits, and every node needs a request
	if config.UserAgent == "" {
		config.UserAgent = "kubectl-vgpu"
	}
	api, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	return &Fleet{Namespace: namespace, config: config, api: api}, nil
}

func (f *Fleet) list(ctx context.Context, resource, namespace string, opts metav1.ListOptions, into runtime.Object) error {
	return f.api.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).
		VersionedParams(&opts, parameterCodec).Do(ctx).Into(into)
}

// Nodes returns all nodes of the cluster.
func (f *Fleet) Nodes(ctx context.Context) ([]corev1.Node, error) {
	var nodes corev1.NodeList
	if err := f.list(ctx, "nodes", "", metav1.ListOptions{}, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return nodes.Items, nil
}

// Node returns the node with this name.
func (f *Fleet) Node(ctx context.Context, name string) (*corev1.Node, error) {
	var node corev1.Node
	if err := f.api.Get().Resource("nodes").Name(name).Do(ctx).Into(&node); err != nil {
		return nil, err
	}
	return &node, nil
}

// Pods returns the pods of a namespace, "" for all, that match the label selector.
func (f *Fleet) Pods(ctx context.Context, namespace, labels string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := f.list(ctx, "pods", namespace, metav1.ListOptions{LabelSelector: labels}, &pods); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return pods.Items, nil
}

// PodsOn returns the pods on a node. The name "" returns the pods that no scheduler has bound.
func (f *Fleet) PodsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	on := fields.OneTermEqualSelector("spec.nodeName", node).String()
	if err := f.list(ctx, "pods", "", metav1.ListOptions{FieldSelector: on}, &pods); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return pods.Items, nil
}

// Pod returns the pod with this name.
func (f *Fleet) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	var pod corev1.Pod
	if err := f.api.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(&pod); err != nil {
		return nil, err
	}
	return &pod, nil
}

// Events returns the Events about an object, the latest last. Events about Nodes
// are in the default namespace.
func (f *Fleet) Events(ctx context.Context, kind, namespace, name string) ([]corev1.Event, error) {
	about := fields.Set{"involvedObject.kind": kind, "involvedObject.name": name}
	var events corev1.EventList
	if err := f.list(ctx, "events", namespace, metav1.ListOptions{FieldSelector: about.AsSelector().String()}, &events); err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	slices.SortStableFunc(events.Items, func(a, b corev1.Event) int { return LastSeen(a).Compare(LastSeen(b).Time) })
	return events.Items, nil
}

// LastSeen returns the time of an event's last occurrence, from the first field
// that is set.
func LastSeen(e corev1.Event) metav1.Time {
	switch {
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return metav1.Time(e.Series.LastObservedTime)
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp
	case !e.EventTime.IsZero():
		return metav1.Time(e.EventTime)
	default:
		return e.CreationTimestamp
	}
}

// Agent is the pod of a node's agent.
type Agent struct {
	Node, Pod string
	// IP is the address of the pod.
	IP string
	// Down is the reason that the agent cannot be queried, "" if the agent runs.
	Down string
	// Ready reports whether kubelet finds the pod ready, and the node is not lost.
	Ready bool
	// State describes the states of the pod's containers that do not run.
	State string
}

// Away returns the reason not to query the agent over the network, "" for no reason. The pod of a
// node without power keeps its state, but is not ready.
func (a Agent) Away() string {
	if a.Down == "" && !a.Ready {
		return fmt.Sprintf("its pod %s is not ready", a.Pod)
	}
	return a.Down
}

// errNone reports that the namespace contains no agent.
var errNone = fmt.Errorf("%w: no pod of nri-vgpu's agent is there: check that nri-vgpu is installed in this namespace (--agent-namespace). The agent runs only on nodes that the chart selects, by default with a label such as nri-vgpu.io/gpu=true", agentapi.ErrAway)

// Agents returns the agents of all nodes, sorted by node. Users who may neither list the agents' pods
// nor run commands in the pods get the agents that answer nri-vgpu-view, by their nodes alone.
func (f *Fleet) Agents(ctx context.Context) ([]Agent, error) {
	pods, err := f.Pods(ctx, f.Namespace, selector)
	if apierrors.IsForbidden(err) && !f.mayExec(ctx) {
		all, refused := f.view(ctx)
		if errors.Is(refused, errNoRight) {
			return nil, errors.Join(err, refused) // nri-vgpu-view itself needs the right on pods
		}
		agents := make([]Agent, len(all))
		for i, o := range all {
			agents[i] = Agent{Node: o.Node, Ready: true}
		}
		return agents, refused
	}
	if err != nil {
		return nil, err
	}
	byNode := map[string]Agent{}
	for i := range pods {
		if a, ok := agentOf(&pods[i]); ok {
			// During an upgrade a node may have two pods. Agents prefers the pod that runs and is ready.
			if have, twice := byNode[a.Node]; !twice || have.Down != "" || !have.Ready && a.Ready {
				byNode[a.Node] = a
			}
		}
	}
	if len(byNode) == 0 {
		return nil, fmt.Errorf("find the agents in namespace %s: %w", f.Namespace, errNone)
	}
	agents := make([]Agent, 0, len(byNode))
	for _, a := range byNode {
		agents = append(agents, a)
	}
	slices.SortFunc(agents, func(a, b Agent) int { return strings.Compare(a.Node, b.Node) })
	return agents, nil
}

func agentOf(pod *corev1.Pod) (Agent, bool) {
	if pod.Spec.NodeName == "" || !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == container }) {
		return Agent{}, false
	}
	a := Agent{Node: pod.Spec.NodeName, Pod: pod.Name, IP: pod.Status.PodIP}
	if k := slices.IndexFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == container }); k < 0 || pod.Status.ContainerStatuses[k].State.Running == nil {
		a.Down = fmt.Sprintf("its pod %s does not run", pod.Name)
	}
	a.Ready = slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	a.State = stateOf(pod)
	return a, true
}

// stateOf describes the containers of a pod that do not run.
func stateOf(pod *corev1.Pod) string {
	states := []string{}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil {
			states = append(states, strings.TrimSpace(fmt.Sprintf("container %s: %s %s", s.Name, w.Reason, w.Message)))
		}
		if ended := s.LastTerminationState.Terminated; ended != nil && s.State.Running == nil {
			states = append(states, strings.TrimSpace(fmt.Sprintf("container %s ended with %d: %s", s.Name, ended.ExitCode, strings.TrimSpace(ended.Message))))
		}
	}
	if len(states) == 0 {
		states = append(states, string(pod.Status.Phase))
	}
	return strings.Join(states, "; ")
}

// configMap and configKey name the nodes' configuration in the agents' namespace.
const (
	configMap = "nri-vgpu"
	configKey = "config.toml"
)

// Config returns the configuration of the nodes with its pools, from the ConfigMap of the agents.
func (f *Fleet) Config(ctx context.Context) (config.File, error) {
	var m corev1.ConfigMap
	if err := f.api.Get().Namespace(f.Namespace).Resource("configmaps").Name(configMap).Do(ctx).Into(&m); err != nil {
		return config.File{}, fmt.Errorf("read the configuration of nri-vgpu (check --agent-namespace): %w", err)
	}
	file, err := config.ParseFile([]byte(m.Data[configKey]))
	if err != nil {
		return config.File{}, fmt.Errorf("parse ConfigMap %s/%s: %w", f.Namespace, configMap, err)
	}
	return file, nil
}

// Annotate sets an annotation of a pod, or removes it if the value is "". If the pod has changed since
// it was read, Annotate returns a conflict.
func (f *Fleet) Annotate(ctx context.Context, pod *corev1.Pod, key, value string) error {
	change := map[string]any{key: nil}
	if value != "" {
		change[key] = value
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": pod.ResourceVersion, "annotations": change}})
	if err != nil {
		return fmt.Errorf("encode the annotation: %w", err)
	}
	return f.api.Patch(types.MergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).Body(body).Do(ctx).Error()
}
