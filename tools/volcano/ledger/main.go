// SPDX-License-Identifier: Apache-2.0

// SPDX-License-Identifier: Apache-2.0

// Command ledger reports, by Volcano's own code, how Volcano's scheduler
// interprets a Node and the pods on the Node. The report states whether the scheduler counts
// the Node's GPUs, and which part of each GPU the scheduler considers used. The report also
// contains the assignment that the scheduler would write. The command reads a question from
// standard input and writes the answer to standard output, both in JSON.
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

// question is the input.
type question struct {
	Node *corev1.Node `json:"node"`
	// Pods are the pods that the scheduler knows to be on the Node.
	Pods []*corev1.Pod `json:"pods"`
	// Assign is a pod to place on the Node after the other pods. Assign may be nil.
	Assign *corev1.Pod `json:"assign,omitempty"`
}

// answer is the output.
type answer struct {
	// Known reports whether the scheduler counts the Node's GPUs.
	Known bool  `json:"known"`
	GPUs  []gpu `json:"gpus"`
	// Annotations are the annotations that the scheduler would write on the
	// pod.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Refused is the reason that the scheduler would not place the pod.
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

// handshake is the scheduler's annotation on a Node. If the annotation stayed unchanged, the
// scheduler's code would write a new value to a nonexistent API server.
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

// assign has Volcano place the pod, and records the annotations that Volcano
// writes.
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
