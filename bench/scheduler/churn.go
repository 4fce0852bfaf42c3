// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
)

const (
	// killEvery is the time between two kills of the leading scheduler.
	killEvery = time.Minute
	// calm is the final period without arrivals. settle is the period before calm, in which the
	// scheduler binds the last pods.
	calm   = time.Minute
	settle = time.Minute
	// load is the average request of all pods, as a part of the cluster.
	load = 0.8
	// auditLog and auditPolicy are files on the node of the API server.
	auditLog    = "/run/audit.log"
	auditPolicy = "/etc/kubernetes/audit.yaml"
	// scheduler is the name of the schedulers, their lease and their user agent.
	scheduler = "nri-vgpu-scheduler"
)

// policy has the API server log all writes.
const policy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    verbs: [create, update, patch, delete]
  - level: None
`

// churned is the last line of a measurement of churn.
type churned struct {
	Nodes   int     `json:"nodes"`
	Seconds float64 `json:"seconds"`
	Created int     `json:"pods_created"`
	Bound   int     `json:"pods_bound"`
	Ended   int     `json:"pods_ended"`
	Waiting int     `json:"pods_waiting_at_end"`
	// Refused counts pods that a node's ledger refused. Double counts pods whose assignment exceeds
	// a GPU's memory, according to the pods' annotations alone.
	Refused int `json:"refused"`
	Double  int `json:"double_use"`
	Kills   int `json:"leader_kills"`
	// PodWrites counts the scheduler's writes of pods and bindings. Events counts the scheduler's
	// other writes, without leases. IdleWrites counts the writes in the calm period, without
	// leases.
	PodWrites  int `json:"pod_writes"`
	Events     int `json:"event_writes"`
	IdleWrites int `json:"idle_writes"`
}

func (c churned) holds() bool {
	return c.Refused == 0 && c.Double == 0 && c.IdleWrites == 0 && c.Waiting == 0 && c.PodWrites <= c.Created && c.Ended > 0
}

// stages is the behaviour of kwok's pods.
//
//go:embed stages.yaml
var stages []byte

// churn measures a cluster whose nodes kwok simulates. Pods arrive and end, and churn kills leading
// schedulers.
func churn(ctx context.Context, o options, temp string) (result churned, err error) {
	kwok, err := build(ctx, components.Kwok())
	if err != nil {
		return result, err
	}
	file := filepath.Join(temp, "audit.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		return result, err
	}
	f, err := newFull(ctx, temp, cluster.Options{
		Files:     map[string]string{auditPolicy: file},
		APIServer: []string{"--audit-policy-file=" + auditPolicy, "--audit-log-path=" + auditLog},
	})
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, f.Down()) }()
	if err := f.createNodes(ctx, o.nodes); err != nil {
		return result, err
	}
	nodes, err := newLedgers(ctx, f.api, o.nodes)
	if err != nil {
		return result, err
	}
	behaviour := filepath.Join(temp, "stages.yaml")
	if err := os.WriteFile(behaviour, stages, 0o600); err != nil {
		return result, err
	}
	simulated := &program{name: "kwok", path: kwok, args: []string{"--kubeconfig=" + f.Kubeconfig(), "--manage-all-nodes=true", "--config=" + behaviour}}
	if err := simulated.start(ctx); err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, simulated.stop()) }()
	pair, err := f.schedulers(ctx, o)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, pair.stop()) }()
	begin := time.Now()
	result.Nodes = o.nodes
	result.Created, result.Kills, err = f.arrive(ctx, o, pair)
	if err != nil {
		return result, err
	}
	if err := pause(ctx, settle); err != nil {
		return result, err
	}
	still := time.Now()
	if err := pause(ctx, calm); err != nil {
		return result, err
	}
	result.Seconds = time.Since(begin).Seconds()
	nodes.count(&result)
	return result, result.countWrites(filepath.Join(f.Root(), auditLog), still)
}

// arrive creates and deletes pods for the length of the measurement, and kills the leader.
func (f *full) arrive(ctx context.Context, o options, pair *pair) (created, kills int, err error) {
	random := rand.New(rand.NewPCG(1, 2))
	life := time.Duration(float64(o.nodes*gpus) * load / meanParts / o.rate * float64(time.Second))
	fmt.Fprintf(os.Stderr, "%g pods/s arrive for %v, and live %v on average\n", o.rate, o.churn, life.Round(time.Second))
	end, kill := time.Now().Add(o.churn), time.Now().Add(killEvery)
	ticker := time.NewTicker(time.Duration(float64(time.Second) / o.rate))
	defer ticker.Stop()
	failures := make(chan error, 1)
	for time.Now().Before(end) {
		select {
		case <-ctx.Done():
			return created, kills, ctx.Err()
		case err := <-failures:
			return created, kills, err
		case <-ticker.C:
		}
		if time.Now().After(kill) {
			kill = kill.Add(killEvery)
			kills++
			if err := pair.killLeader(ctx, f.api); err != nil {
				return created, kills, err
			}
		}
		created++
		pod := churnPod(random, created)
		lives := time.Duration(random.ExpFloat64() * float64(life))
		go func() {
			if err := f.live(ctx, pod, lives, end); err != nil && ctx.Err() == nil {
				select {
				case failures <- err:
				default:
				}
			}
		}()
	}
	return created, kills, nil
}

// live creates a pod, and deletes the pod when its life ends, unless the measurement ends earlier.
func (f *full) live(ctx context.Context, pod *corev1.Pod, lives time.Duration, end time.Time) error {
	pods := f.api.CoreV1().Pods(metav1.NamespaceDefault)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	if time.Now().Add(lives).After(end) {
		return nil
	}
	if err := pause(ctx, lives); err != nil {
		return err
	}
	return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{})
}

// meanParts is the mean number of whole GPUs that a pod of churnPod requests.
const meanParts = 0.4*0.25 + 0.3*0.5 + 0.2*0.75 + 0.1*1

// churnPod draws a pod that requests a quarter, a half, three quarters or all of a GPU.
func churnPod(random *rand.Rand, number int) *corev1.Pod {
	parts := []int64{1, 1, 1, 1, 2, 2, 2, 3, 3, 4}[random.IntN(10)]
	pod := newPod(fmt.Sprint("churn-", number))
	amount := *resource.NewQuantity(parts*gpuMemory/4, resource.DecimalSI)
	pod.Spec.Containers[0].Resources.Limits[memory], pod.Spec.Containers[0].Resources.Requests[memory] = amount, amount
	grace := int64(1)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	return pod
}

// pair contains two replicas of the scheduler. One replica leads.
type pair struct {
	replicas map[string]*program
}

func (f *full) schedulers(ctx context.Context, o options) (*pair, error) {
	p := &pair{replicas: map[string]*program{}}
	limit, err := goMemoryLimit()
	if err != nil {
		return nil, err
	}
	configuration, err := withVGPU()
	if err != nil {
		return nil, err
	}
	connection := map[string]any{"kubeconfig": f.Kubeconfig(), "qps": 1000, "burst": 2000}
	election := map[string]any{"leaderElect": true, "resourceName": scheduler, "resourceNamespace": "kube-system"}
	for i := range 2 {
		name := fmt.Sprintf("%s-%d", scheduler, i)
		file := filepath.Join(f.dir, name+".yaml")
		if err := configuration.write(file, connection, election); err != nil {
			return nil, errors.Join(err, p.stop())
		}
		replica := &program{
			name: name, path: filepath.Join(o.build, "bin", scheduler), args: []string{"--config=" + file, "--secure-port=0"},
			env: []string{"GOMEMLIMIT=" + limit},
		}
		if err := replica.start(ctx); err != nil {
			return nil, errors.Join(err, p.stop())
		}
		p.replicas[name] = replica
	}
	return p, nil
}

// killLeader kills the process that holds the lease, and starts another process.
func (p *pair) killLeader(ctx context.Context, api kubernetes.Interface) error {
	lease, err := api.CoordinationV1().Leases("kube-system").Get(ctx, scheduler, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for name, replica := range p.replicas {
		if bytes.Contains(bytes.ToLower(replica.log()), []byte("successfully acquired lease")) {
			fmt.Fprintf(os.Stderr, "kill %s, of the lease of %s\n", name, *lease.Spec.HolderIdentity)
			return replica.restart(ctx)
		}
	}
	return errors.New("no replica leads")
}

func (p *pair) stop() (err error) {
	for _, replica := range p.replicas {
		err = errors.Join(err, replica.stop())
	}
	return err
}

func pause(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(length):
		return nil
	}
}
