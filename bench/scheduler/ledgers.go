// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// ledgers are the ledgers of all nodes. Like the agent of a node, a ledger applies the assignment
// of a bound pod, and takes the GPUs.
type ledgers struct {
	mu     sync.Mutex
	cfg    config.Config
	nodes  map[string]*placement.Ledger
	bound  map[string]string // the node of each pod that was ever bound, by UID
	exists map[string]bool   // whether an existing pod has a node, by UID
	// taken is the assigned memory of each GPU in MiB, by node and UUID, according to the existing
	// pods' annotations alone.
	taken           map[string]int64
	refused, double int
	ended           int // pods that were bound
}

func newLedgers(ctx context.Context, api kubernetes.Interface, nodes int) (*ledgers, error) {
	l := &ledgers{cfg: config.Default(), nodes: map[string]*placement.Ledger{}, bound: map[string]string{}, exists: map[string]bool{}, taken: map[string]int64{}}
	for i := range nodes {
		l.nodes[nodeName(i)] = placement.New(cards(), l.cfg)
	}
	factory := informers.NewSharedInformerFactory(api, 0)
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { l.see(object.(*corev1.Pod)) },
		UpdateFunc: func(_, object any) { l.see(object.(*corev1.Pod)) },
		DeleteFunc: func(object any) {
			if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			l.release(object.(*corev1.Pod))
		},
	})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return l, ctx.Err()
}

// see places a pod when see first finds the pod on a node.
func (l *ledgers) see(pod *corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	uid := string(pod.UID)
	l.exists[uid] = pod.Spec.NodeName != ""
	if _, known := l.bound[uid]; known || pod.Spec.NodeName == "" {
		return
	}
	l.bound[uid] = pod.Spec.NodeName
	if err := l.place(pod); err != nil {
		l.refused++
		fmt.Fprintf(os.Stderr, "refused: pod %s on %s: %v\n", pod.Name, pod.Spec.NodeName, err)
	}
	for _, key := range gpusOf(pod) {
		if l.taken[key] += amountOf(pod); l.taken[key] > gpuMemory {
			l.double++
			fmt.Fprintf(os.Stderr, "double use: %s has %d MiB with pod %s\n", key, l.taken[key], pod.Name)
		}
	}
}

func (l *ledgers) place(pod *corev1.Pod) error {
	asked, err := request.Read(pod, l.cfg)
	if err != nil {
		return err
	}
	if _, assigned := pod.Annotations[assign.Annotation]; !assigned {
		return fmt.Errorf("the pod has no assignment")
	}
	if asked, err = assign.Obey(asked, pod, cards()); err != nil {
		return err
	}
	_, err = l.nodes[pod.Spec.NodeName].Place(asked, pod.Spec.Containers[0].Name)
	return err
}

func (l *ledgers) release(pod *corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	uid := string(pod.UID)
	delete(l.exists, uid)
	if node, ok := l.bound[uid]; ok {
		l.ended++
		l.nodes[node].Release(uid)
		for _, key := range gpusOf(pod) {
			l.taken[key] -= amountOf(pod)
		}
	}
}

func amountOf(pod *corev1.Pod) int64 {
	amount := pod.Spec.Containers[0].Resources.Limits[memory]
	return amount.Value()
}

// gpusOf returns the assigned GPUs of a pod, each with its node. gpusOf parses the annotation
// without the scheduler's code.
func gpusOf(pod *corev1.Pod) (keys []string) {
	var assigned map[string][]string
	_ = json.Unmarshal([]byte(pod.Annotations[assign.Annotation]), &assigned)
	for _, uuids := range assigned {
		for _, uuid := range uuids {
			keys = append(keys, pod.Spec.NodeName+"/"+uuid)
		}
	}
	return keys
}

// count writes the numbers of pods to the result.
func (l *ledgers) count(result *churned) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, hasNode := range l.exists {
		if !hasNode {
			result.Waiting++
		}
	}
	result.Bound, result.Ended, result.Refused, result.Double = len(l.bound), l.ended, l.refused, l.double
}

// countWrites counts the schedulers' writes in the API server's audit log. Writes after the time
// still are idle writes.
func (c *churned) countWrites(path string, still time.Time) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			UserAgent string    `json:"userAgent"`
			At        time.Time `json:"requestReceivedTimestamp"`
			Object    struct {
				Resource string `json:"resource"`
			} `json:"objectRef"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("read the audit log: %w", err)
		}
		if !strings.HasPrefix(e.UserAgent, scheduler) || e.Object.Resource == "leases" {
			continue
		}
		if e.Object.Resource == "pods" {
			c.PodWrites++
		} else {
			c.Events++
		}
		if e.At.After(still) {
			c.IdleWrites++
		}
	}
	return lines.Err()
}

// lockedBuffer is a buffer that one goroutine may read while another goroutine writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends to the buffer.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.b.Bytes())
}
