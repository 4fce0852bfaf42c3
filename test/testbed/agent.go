// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	nriconfig "github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

const (
	agent      = "nri-vgpu" // the DaemonSet and its ConfigMap
	configFile = "config.toml"
)

// agentPods selects the agents' pods.
var agentPods = metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + agent}

// RestartAgent replaces the agent's pod, and waits until the new pod is ready.
func (b *Bed) RestartAgent(ctx context.Context, timeout time.Duration) error {
	now := map[string]any{"kubectl.kubernetes.io/restartedAt": time.Now().Format(time.RFC3339Nano)}
	if err := b.patchAgent(ctx, map[string]any{"metadata": map[string]any{"annotations": now}}); err != nil {
		return err
	}
	return b.WaitAgent(ctx, timeout)
}

// WaitAgent waits until each node's new agent reports itself ready. Kubelet probes only every five
// seconds.
func (b *Bed) WaitAgent(ctx context.Context, timeout time.Duration) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		last = b.agentReady(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("the agent is not ready after %v: %w", timeout, errorOr(last, err))
	}
	return nil
}

func (b *Bed) agentReady(ctx context.Context) error {
	set, err := b.Client.AppsV1().DaemonSets(b.home).Get(ctx, agent, metav1.GetOptions{})
	if err != nil {
		return err
	}
	pods, err := b.Client.CoreV1().Pods(b.home).List(ctx, agentPods)
	if err != nil {
		return err
	}
	want := int(set.Status.DesiredNumberScheduled)
	if set.Status.ObservedGeneration < set.Generation || int(set.Status.UpdatedNumberScheduled) != want || len(pods.Items) != want || want == 0 {
		return fmt.Errorf("%d of %d agents are new, and %d pods exist", set.Status.UpdatedNumberScheduled, want, len(pods.Items))
	}
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp != nil || pods.Items[i].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("pod %s is %s", pods.Items[i].Name, Describe(&pods.Items[i]))
		}
		// The request goes through the API server, which reaches all nodes.
		if _, err := b.Client.CoreV1().Pods(b.home).ProxyGet("http", pods.Items[i].Name, agentPort, "/readyz", nil).DoRaw(ctx); err != nil {
			return fmt.Errorf("query pod %s: %w", pods.Items[i].Name, err)
		}
	}
	return nil
}

// Config returns the agent's config.toml.
func (b *Bed) Config(ctx context.Context) (string, error) {
	config, err := b.Client.CoreV1().ConfigMaps(b.home).Get(ctx, agent, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read the agent's configuration: %w", err)
	}
	return config.Data[configFile], nil
}

// SetConfig replaces the agent's config.toml and restarts the agent. As the chart does, SetConfig lists
// the resources of the enabled dialects. SetConfig returns the previous config.toml.
func (b *Bed) SetConfig(ctx context.Context, content string, timeout time.Duration) (before string, err error) {
	maps := b.Client.CoreV1().ConfigMaps(b.home)
	config, err := maps.Get(ctx, agent, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read the agent's configuration: %w", err)
	}
	before = config.Data[configFile]
	config.Data[configFile] = content
	if cfg, err := nriconfig.Parse([]byte(content)); err == nil {
		config.Data["resources"] = strings.Join(request.Names(cfg.Dialects), "\n")
	}
	if _, err := maps.Update(ctx, config, metav1.UpdateOptions{}); err != nil {
		return "", fmt.Errorf("write the agent's configuration: %w", err)
	}
	return before, b.RestartAgent(ctx, timeout)
}

// RestartPatcher replaces the patcher's pods, which read config.toml at their start.
func (b *Bed) RestartPatcher(ctx context.Context) error {
	patchers := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=extended-resource-patcher"}
	return b.Client.CoreV1().Pods(b.home).DeleteCollection(ctx, metav1.DeleteOptions{}, patchers)
}

// StopAgent removes the agent from the node, and waits until the agent has ended.
func (b *Bed) StopAgent(ctx context.Context, timeout time.Duration) error {
	if err := b.patchAgent(ctx, onNodes("true")); err != nil {
		return err
	}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		pods, err := b.Client.CoreV1().Pods(b.home).List(ctx, agentPods)
		return err == nil && len(pods.Items) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("the agent is still on its node after %v: %w", timeout, err)
	}
	return nil
}

// StartAgent restores the agent after StopAgent, and waits until the agent is ready.
func (b *Bed) StartAgent(ctx context.Context, timeout time.Duration) error {
	if err := b.patchAgent(ctx, onNodes(nil)); err != nil {
		return err
	}
	return b.WaitAgent(ctx, timeout)
}

// KillAgent kills the agent's processes with SIGKILL. Kubelet restarts the agent.
func (b *Bed) KillAgent(ctx context.Context) error {
	pods, err := b.Client.CoreV1().Pods(b.home).List(ctx, agentPods)
	if err != nil {
		return fmt.Errorf("list the agent's pods: %w", err)
	}
	programs, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return err
	}
	for _, program := range programs {
		target, err := os.Readlink(program)
		if err != nil || filepath.Base(target) != agent {
			continue // the process has ended, or is another process
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(program)))
		if err != nil {
			return err
		}
		for i := range pods.Items {
			ours, err := runsIn(pid, &pods.Items[i])
			if err == nil && ours {
				err = syscall.Kill(pid, syscall.SIGKILL)
			}
			if err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("kill process %d of the agent: %w", pid, err)
			}
		}
	}
	return nil
}

// onNodes returns a template whose pods run on the nodes with this label. nil means all nodes.
func onNodes(nowhere any) map[string]any {
	return map[string]any{"spec": map[string]any{"nodeSelector": map[string]any{"nri-vgpu.io/nowhere": nowhere}}}
}

// patchAgent changes the template of the agent's pods.
func (b *Bed) patchAgent(ctx context.Context, template map[string]any) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
	if err != nil {
		return err
	}
	if _, err := b.Client.AppsV1().DaemonSets(b.home).Patch(ctx, agent, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("change the agent's DaemonSet: %w", err)
	}
	return nil
}

// Vgpuctl runs the installed vgpuctl on the node.
func (b *Bed) Vgpuctl(ctx context.Context, args ...string) (string, error) {
	program := filepath.Join(paths.Versioned("/opt/nri-vgpu", version.Version), paths.Vgpuctl)
	return b.Cluster.Exec(ctx, append([]string{program}, args...)...)
}

// InAgent runs a command in the agent's pod, as kubectl exec does.
func (b *Bed) InAgent(ctx context.Context, command ...string) (string, error) {
	return b.kubectlOutput(ctx, append([]string{"-n", b.home, "exec", "daemonset/" + agent, "--"}, command...)...)
}

// ContainerFiles returns the node's directory with the files of a container, as a path on this
// machine.
func (b *Bed) ContainerFiles(pod *corev1.Pod, container string) string {
	return filepath.Join(b.Cluster.Root(), paths.Containers("/run/nri-vgpu"), string(pod.UID), container)
}

// DirectConfig returns a config.toml with which the agent injects GPUs itself, without NVIDIA's
// runtime.
func (b *Bed) DirectConfig() string {
	var config strings.Builder
	config.WriteString("[injection]\nmethod = \"direct\"\n")
	if !b.options.Simulated() {
		return config.String()
	}
	config.WriteString("[injection.direct]\ndevices = []\n")
	for path, readOnly := range map[string]bool{
		"/dev/gpusim/state":                           false,
		"/dev/gpusim/gpu{minor}":                      false,
		"/usr/lib/x86_64-linux-gnu/libcuda.so.1":      true,
		"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": true,
	} {
		fmt.Fprintf(&config, "[[injection.direct.mounts]]\nsource = %q\ndestination = %q\nread_only = %t\n", path, path, readOnly)
	}
	return config.String()
}
