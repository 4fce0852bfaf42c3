// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
)

// execTimeout bounds a command in a container if the caller sets no bound.
const execTimeout = 5 * time.Minute

// PodExec runs a command in a container, as kubectl exec does, and returns the command's output.
// The container may be "" if the pod has only one container.
func (c *Cluster) PodExec(ctx context.Context, namespace, pod, container string, argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	request := c.client.CoreV1().RESTClient().Post().
		Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: container, Command: argv, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(c.config, "GET", request.URL().String())
	if err != nil {
		return "", fmt.Errorf("exec in pod %s/%s: %w", namespace, pod, err)
	}
	var stdout, stderr bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		return stdout.String(), fmt.Errorf("in pod %s/%s: %s: %w: %s", namespace, pod, strings.Join(argv, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// PodLogs returns the output of a container so far, as kubectl logs does.
func (c *Cluster) PodLogs(ctx context.Context, namespace, pod, container string) (string, error) {
	content, err := c.client.CoreV1().Pods(namespace).
		GetLogs(pod, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read the logs of pod %s/%s: %w", namespace, pod, err)
	}
	return string(content), nil
}
