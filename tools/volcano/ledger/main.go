// SPDX-License-Identifier: Apache-2.0

// Command ledger tells, by Volcano's own code, what its scheduler makes of a
// Node and of the pods on it: whether it counts the Node's GPUs at all, what of
// each it takes to be used, and how it would write an assignment. It reads a
// question from standard input and writes the answer to standard output, both
// in JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"volcano.sh/volcano/pkg/scheduler/api/devices/nvidia/vgpu"
)

// question is what to judge.
type question struct {
	Node *corev1.Node `json:"node"`
	// Pods are those that the scheduler knows to be on the Node.
	Pods []*corev1.Pod `json:"pods"`
	// Assign, where there is one, is a pod to be placed on the Node after them.
	Assign *corev1.Pod `json:"assign,omitempty"`
}

// answer is what Volcano makes of it.
type answer struct {
	// Known: the scheduler counts the Node's GPUs.
	Known bool  `json:"known"`
	GPUs  []gpu `json:"gpus"`
	// Annotations are what it would write on the pod.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Refused is why it would not place the pod.
	Refused string `json:"refused,omitempty"`
}

type gpu struct {
	UUID      string `json:"uuid"`
	Type      string `json:"type"`
	Healthy   bool   `json:"healthy"`
	Number    uint   `json:"number"`
	Memory    uint   `json:"memory"`
	UsedNum   uint   `json:"usedNum"`
	UsedMem   uint   `json:"usedMem"`
	UsedCores uint   `json:"usedCores"`
}

// handshake is the scheduler's own annotation on a Node. Left as it is, its
// code would write a new one to an API server that is not there.
const handshake = "volcano.sh/node-vgpu-handshake"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "ledger:", err)
		os.Exit(1)
	}
}

func run() error {
	var q question
	if err := json.NewDecoder(os.Stdin).Decode(&q); err != nil {
		return fmt.Errorf("read the question: %w", err)
	}
	vgpu.VGPUEnable = true
	if q.Node.Annotations[handshake] != "" {
		q.Node.Annotations[handshake] = "Requesting_" + time.Now().UTC().Format("2006.01.02 15:04:05")
	}
	var a answer
	node := vgpu.NewGPUDevices(q.Node.Name, q.Node)
	if a.Known = node != nil; a.Known {
		for _, pod := range q.Pods {
			node.AddResource(pod)
		}
		a.GPUs = gpus(node)
		if q.Assign != nil {
			if err := a.assign(node, q.Assign); err != nil {
				a.Refused = err.Error()
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

func gpus(node *vgpu.GPUDevices) []gpu {
	var all []gpu
	for _, d := range node.Device {
		all = append(all, gpu{
			UUID: d.UUID, Type: d.Type, Healthy: d.Health, Number: d.Number, Memory: d.Memory,
			UsedNum: d.UsedNum, UsedMem: d.UsedMem, UsedCores: d.UsedCore,
		})
	}
	slices.SortFunc(all, func(x, y gpu) int {
		if x.UUID < y.UUID {
			return -1
		}
		return 1
	})
	return all
}

// assign has Volcano place the pod, and keeps what it writes.
func (a *answer) assign(node *vgpu.GPUDevices, pod *corev1.Pod) error {
	client := fake.NewSimpleClientset(pod)
	if err := node.Allocate(client, pod); err != nil {
		return err
	}
	written, err := client.CoreV1().Pods(pod.Namespace).Get(context.Background(), pod.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	a.Annotations = written.Annotations
	return nil
}
