// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/explain"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/resize"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

const (
	// plugin is the program's name as a plugin of kubectl. completer is the program's name when kubectl
	// completes a command line.
	plugin    = "kubectl-vgpu"
	completer = "kubectl_complete-vgpu"
)

// kubectlVgpu returns the root command of kubectl's plugin: the commands that
// work remotely.
func kubectlVgpu() *cobra.Command {
	c := &cluster{}
	root := &cobra.Command{
		Use:         plugin,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl vgpu"},
		Version:     version.Version,
		Short:       "Show GPUs, their users, and why pods wait for them; resize parts of GPUs",
		Long: `Show the GPUs of a cluster, their users and the use of each part, why a pod waits, was
refused or is slow, and what is wrong with a node. Resize the parts of running containers.

The plugin runs a command in the agents' pods through the API server, so no port of a
node has to be open. It needs the rights to list pods and nodes, and to create
pods/exec in the agents' namespace. The right to create pods/exec there amounts to
root on the nodes, as with any privileged pod: grant it only to administrators. Without
this right, top, ps, get and describe read nri-vgpu-view, which needs the rights of the
Role nri-vgpu-viewer and view.enabled=true in the chart.`,
		Example: `  kubectl vgpu top
  kubectl vgpu get gpus
  kubectl vgpu get pods -A --sort-by time
  kubectl vgpu describe pod -n shop train-0
  kubectl vgpu why -n shop train-1
  kubectl vgpu resize train-0 --memory 8Gi --cores 50
  kubectl vgpu doctor node-1`,
		SilenceUsage: true, SilenceErrors: true,
	}
	get := &cobra.Command{Use: "get", Short: "List GPUs, nodes or containers with GPUs", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return errors.New("name the objects: gpus, nodes or pods") }}
	get.AddCommand(gpusCommand(c), nodesCommand(c), podsCommand(c))
	describe := &cobra.Command{Use: "describe", Short: "Explain why a pod waits, was refused or is slow, or what is wrong with a node", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return errors.New("name the object: pod or node") }}
	describe.AddCommand(describePodCommand(c), describeNodeCommand(c))
	root.AddCommand(topCommand(c), psCommand(c), get, describe, whyCommand(c), resizeCommand(c), viewCommand(c), examineCommand(c), versionCommand())
	c.global(root)
	return root
}

// cluster describes the cluster that kubeconfig and flags select.
type cluster struct {
	rules     clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
	agents    string
	all       bool
	labels    string
	unscoped  bool // list all namespaces unless a flag names a namespace

	fleet *fleet.Fleet
}

// global adds the flags that all commands share. The flags have kubectl's names.
func (c *cluster) global(root *cobra.Command) {
	c.rules = *clientcmd.NewDefaultClientConfigLoadingRules()
	flags := root.PersistentFlags()
	flags.StringVar(&c.rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig; else $KUBECONFIG or ~/.kube/config")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ContextOverrideFlags.Namespace.ShortName = "n"
	clientcmd.BindOverrideFlags(&c.overrides, flags, names)
	flags.StringVar(&c.agents, "agent-namespace", fleet.DefaultNamespace, "namespace of nri-vgpu's agents")
	_ = root.RegisterFlagCompletionFunc("namespace", noFiles)
}

func noFiles(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveNoFileComp
}

func (c *cluster) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.all, "all-namespaces", "A", false, "include pods of all namespaces")
	switch cmd.Name() {
	case "gpus", "nodes":
		_ = cmd.Flags().MarkHidden("all-namespaces") // without effect, as for kubectl get nodes
		cmd.ValidArgsFunction = c.complete("nodes")
		return
	case "top":
		cmd.ValidArgsFunction = c.complete("nodes")
	default:
		cmd.ValidArgsFunction = c.complete("pods")
	}
	cmd.Flags().StringVarP(&c.labels, "selector", "l", "", "select pods by labels, such as app=train")
}

func (c *cluster) config() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&c.rules, &c.overrides)
}

// connect returns the fleet of the cluster and the selected namespace.
func (c *cluster) connect() (*fleet.Fleet, string, error) {
	namespace, _, err := c.config().Namespace()
	if err != nil {
		return nil, "", kubeconfigError(err)
	}
	if c.fleet == nil {
		config, err := c.config().ClientConfig()
		if err != nil {
			return nil, "", kubeconfigError(err)
		}
		config.UserAgent = plugin + "/" + version.Version
		if c.fleet, err = fleet.New(config, c.agents); err != nil {
			return nil, "", err
		}
	}
	return c.fleet, namespace, nil
}

// kubeconfigError names the places of the kubeconfig. client-go's error about an empty configuration
// names a variable that has no effect.
func kubeconfigError(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		err = errors.New("no file describes a cluster")
	}
	return fmt.Errorf("read the kubeconfig (--kubeconfig, else $KUBECONFIG or ~/.kube/config): %w", err)
}

// connected runs a function with the fleet of the cluster and the selected namespace. An interrupt ends
// the function's context.
func (c *cluster) connected(cmd *cobra.Command, run func(ctx context.Context, f *fleet.Fleet, namespace string) error) error {
	ctx, stop := interruptible(cmd)
	defer stop()
	f, namespace, err := c.connect()
	if err != nil {
		return err
	}
	return run(ctx, f, namespace)
}

func (c *cluster) everywhere() { c.unscoped = true }

func (c *cluster) open(ctx context.Context) (show.Source, show.Filter, error) {
	f, namespace, err := c.connect()
	if err != nil {
		return nil, show.Filter{}, err
	}
	if c.all || c.unscoped && c.overrides.Context.Namespace == "" {
		namespace = ""
	}
	filter := show.Filter{Namespace: namespace, Inside: namespace != "" || c.labels != ""}
	if c.labels == "" {
		return f, filter, nil
	}
	pods, err := f.Pods(ctx, namespace, c.labels)
	if err != nil {
		return nil, filter, err
	}
	selected := map[string]bool{}
	for i := range pods {
		selected[pods[i].Namespace+"/"+pods[i].Name] = true
	}
	filter.Selected = func(namespace, pod string) bool { return selected[namespace+"/"+pod] }
	return f, filter, nil
}

// waiting sets the status of the pods in have. waiting returns the waiting pods that no agent
// lists.
func (c *cluster) waiting(ctx context.Context, have []show.PodEntry) ([]show.PodEntry, error) {
	f, namespace, err := c.connect()
	if err != nil {
		return nil, err
	}
	if c.all {
		namespace = ""
	}
	pods, err := f.Pods(ctx, namespace, c.labels)
	if apierrors.IsForbidden(err) {
		return nil, nil // a reader of nri-vgpu-view needs no right on pods
	}
	if err != nil {
		return nil, err
	}
	nodes, err := f.Nodes(ctx)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	status := map[string]string{}
	for i := range pods {
		status[pods[i].Namespace+"/"+pods[i].Name] = explain.Status(&pods[i])
	}
	for i := range have {
		have[i].Status = status[have[i].Namespace+"/"+have[i].Pod]
	}
	return explain.Waiting(pods, nodes, have), nil
}

// complete returns a function that completes names of the kind: pods or nodes.
func (c *cluster) complete(kind string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, stop := context.WithTimeout(context.Background(), 3*time.Second)
		defer stop()
		f, namespace, err := c.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		switch kind {
		case "pods":
			pods, _ := f.Pods(ctx, namespace, "")
			for i := range pods {
				names = append(names, pods[i].Name)
			}
		case "nodes":
			nodes, _ := f.Nodes(ctx)
			for i := range nodes {
				names = append(names, nodes[i].Name)
			}
		}
		return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, begun) }), cobra.ShellCompDirectiveNoFileComp
	}
}

func resizeCommand(c *cluster) *cobra.Command {
	var o resize.Options
	cmd := &cobra.Command{
		Use:   "resize POD (--memory SIZE | --cores PERCENT | --reset)",
		Short: "Change the sizes of a running container's parts of GPUs",
		Long: `Change how much memory and time of each of its GPUs a running container may use. The
container keeps running, and keeps its GPUs.

A container gets more only if its GPUs have room, and beyond the pod's request only as
far as resize.maximum in config.toml allows for its namespace. A container gets less
memory only once it uses less. Until then the request stays in the annotation
nri-vgpu.io/resize, and the node retries each second.

The command needs the rights to get and patch pods, and to patch pods/resize.

Exit status: 0 if the container has the size; 1 if it can never have it, or does not have
it within --timeout.`,
		Example: `  kubectl vgpu resize train-0 --memory 8Gi --cores 50
  kubectl vgpu resize -n shop train-0 -c main --cores 20
  kubectl vgpu resize train-0 --reset`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.complete("pods"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.connected(cmd, func(ctx context.Context, f *fleet.Fleet, namespace string) error {
				o.Namespace, o.Pod = namespace, args[0]
				return resize.Run(ctx, f, o, cmd.OutOrStdout())
			})
		},
	}
	cmd.Flags().StringVarP(&o.Container, "container", "c", "", "the container; else the only container that requests extended resources")
	cmd.Flags().StringVar(&o.Memory, "memory", "", "memory of each GPU: MiB, or a quantity such as 8Gi")
	cmd.Flags().Uint32Var(&o.Cores, "cores", 0, "percent of each GPU's time")
	cmd.Flags().BoolVar(&o.Reset, "reset", false, "return to the size that the pod's spec requests")
	cmd.Flags().DurationVar(&o.Wait, "timeout", 10*time.Second, "how long to wait for the node; 0 does not wait")
	_ = cmd.RegisterFlagCompletionFunc("container", noFiles)
	return cmd
}

// examined contains the findings of one node.
type examined struct {
	Node     string            `json:"node"`
	Findings []finding.Finding `json:"findings"`
}

func examineCommand(c *cluster) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "doctor [NODE...]",
		Short: "Find the problems of nri-vgpu on nodes, and show how to fix them",
		Long: `Examine nodes: their objects at the API server and, from the agent's pod, the runtime,
NRI, the guard, the agent, the driver, CDI, kubelet, MPS and nri-vgpu's files. Without
a name, examine all nodes that have or had an agent.

Exit status: 1 if there is a problem. To fix a problem, follow the text after its arrow.`,
		ValidArgsFunction: c.complete("nodes"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd)
			defer stop()
			if err := show.CheckFormat(output, show.ReportFormats); err != nil {
				return err
			}
			f, _, err := c.connect()
			if err != nil {
				return err
			}
			names := args
			if len(names) == 0 {
				if names, err = explain.Ours(ctx, f); err != nil {
					return err
				}
			}
			all := []examined{}
			sound := true
			var failed error
			for _, name := range names {
				findings, err := explain.Examine(ctx, f, name)
				if err != nil {
					failed = errors.Join(failed, err)
					continue
				}
				all = append(all, examined{name, findings})
				sound = sound && finding.Sound(findings)
			}
			err = report(cmd.OutOrStdout(), output, all, func(out io.Writer) error { return writeExamined(out, all) })
			if !sound {
				failed = errors.Join(failed, errUnsoundNodes)
			}
			return errors.Join(err, failed)
		},
	}
	outputFlag(cmd, &output, show.ReportFormats)
	return cmd
}

var errUnsoundNodes = errors.New("found problems; to fix a problem, follow the text after its arrow")

func writeExamined(out io.Writer, all []examined) error {
	for i, e := range all {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "Node %s\n", e.Node)
		if err := finding.WriteTable(out, e.Findings); err != nil {
			return err
		}
	}
	return nil
}
