// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
)

// WaitHeld waits until the pod physically holds memory on this number of GPUs, and the memory no
// longer grows.
func (b *Bed) WaitHeld(ctx context.Context, pod *corev1.Pod, gpus int, timeout time.Duration) error {
	var last map[string]uint64
	steady := 0
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, timeout, true, func(context.Context) (bool, error) {
		held, err := b.Held(pod)
		if err != nil {
			return false, err
		}
		if len(held) == gpus && equal(held, last) {
			steady++
		} else {
			steady = 0
		}
		last = held
		return steady == 5, nil
	})
	if err != nil {
		return fmt.Errorf("pod %s does not hold memory of %d GPUs after %v: %v: %w", pod.Name, gpus, timeout, last, err)
	}
	return nil
}

func equal(a, b map[string]uint64) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if b[key] != value {
			return false
		}
	}
	return true
}

// KillContainer kills, with SIGKILL, the processes of the pod that use a GPU.
func (b *Bed) KillContainer(pod *corev1.Pod) error {
	holdings, err := b.holdings(pod)
	if err != nil {
		return err
	}
	if len(holdings) == 0 {
		return fmt.Errorf("pod %s has no process on a GPU to kill", pod.Name)
	}
	for _, h := range holdings {
		// The list contains a process on two GPUs twice, and the process may be dead the second
		// time.
		if err := syscall.Kill(h.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill process %d of pod %s: %w", h.pid, pod.Name, err)
		}
	}
	return nil
}

// Exec runs a command in the pod's first container, as kubectl exec does, and reads its JSON output
// into result.
func (b *Bed) Exec(ctx context.Context, pod string, result any, command ...string) error {
	stdout, stderr, err := b.ExecOutput(ctx, pod, command...)
	if err != nil {
		return fmt.Errorf("exec %q in %s: %w; it printed %q and %q", command, pod, err, stdout, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), result); err != nil {
		return fmt.Errorf("exec %q in %s printed %q: %w", command, pod, stdout, err)
	}
	return nil
}

// ExecOutput runs a command in the pod's only container and returns the command's output.
// ExecOutput returns an error if the command fails.
func (b *Bed) ExecOutput(ctx context.Context, pod string, command ...string) (stdout, stderr string, err error) {
	return b.ExecIn(ctx, pod, "", command...)
}

// ExecIn runs a command in one of several containers.
func (b *Bed) ExecIn(ctx context.Context, pod, container string, command ...string) (stdout, stderr string, err error) {
	request := b.Client.CoreV1().RESTClient().Post().
		Resource("pods").Namespace(b.namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(b.Cluster.RestConfig(), "GET", request.URL().String())
	if err != nil {
		return "", "", fmt.Errorf("exec in %s: %w", pod, err)
	}
	var out, errs bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &errs})
	return out.String(), errs.String(), err
}

// Fill is the output of the workload fill, with sizes in bytes.
type Fill struct {
	UUID           string `json:"uuid"`
	TotalBytes     uint64 `json:"total_mem_seen"`
	GrantedBytes   uint64 `json:"granted_bytes"`
	RefusedAtBytes uint64 `json:"refused_at_bytes"`
	Refusals       uint64 `json:"refusals"`
	Outcome        string `json:"outcome"`
	Error          string `json:"error"`
}

// Info is the output of the workload info.
type Info struct {
	CUDA struct {
		InitError string `json:"init_error"`
		Devices   []struct {
			UUID       string `json:"uuid"`
			TotalBytes uint64 `json:"total_mem"`
		} `json:"devices"`
	} `json:"cuda"`
	NVML struct {
		Count   int `json:"device_count"`
		Devices []struct {
			UUID   string `json:"uuid"`
			Memory struct {
				TotalBytes uint64 `json:"total"`
			} `json:"memory"`
		} `json:"devices"`
	} `json:"nvml"`
}
