// SPDX-License-Identifier: Apache-2.0

// Package cluster starts real Kubernetes clusters on one machine, without a container engine. One
// node has etcd, the control plane, kubelet, and containerd with NRI and NVIDIA's runtime. Any
// number of other nodes have kubelet and containerd. Each node runs in separate namespaces below
// one supervisor. Therefore several clusters run side by side, and Down leaves no part of a
// cluster.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/node"
)

// These are the names of files in the state directory.
const (
	recordFile     = "cluster.json"
	kubeconfigFile = "kubeconfig"
)

// Supervise must be the first call in main, or in TestMain, of a program that starts clusters. A
// cluster's supervisor is a second process of the same program, in which Supervise does not return.
func Supervise() { node.Supervise() }

// A record is the stored description of a cluster, for processes that later take the cluster down.
type record struct {
	Name   string `json:"name"`
	Device string `json:"device"`
	// Pid and StartTime together identify the supervisor, because the kernel reuses pids.
	Pid       int    `json:"pid"`
	StartTime uint64 `json:"startTime"`
	Address   string `json:"address"`
	Kubectl   string `json:"kubectl"`
	Runtime   string `json:"runtime"`
}

// A Cluster is a running cluster.
type Cluster struct {
	// NodeName is the name of the cluster's node. A separate Cluster represents each worker.
	NodeName string
	// Address is the address at which the machine reaches the node.
	Address string
	// StateDir contains the cluster's state and logs.
	StateDir string

	record   record
	images   []string
	out      io.Writer
	keepLogs bool
	control  *node.Client
	config   *rest.Config
	client   *kubernetes.Clientset
}

// ErrNotRunning reports that no cluster of this name runs.
var ErrNotRunning = errors.New("no such cluster runs")

// Find returns a running cluster. Find uses only the name, the state directory, and the options for
// taking the cluster down.
func Find(o Options) (*Cluster, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	r, err := readRecord(o.StateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s (%s): %w", o.Name, o.StateDir, ErrNotRunning)
	}
	if err != nil {
		return nil, err
	}
	if !alive(r.Pid, r.StartTime) {
		return nil, fmt.Errorf("%s (%s): its supervisor has ended: %w", o.Name, o.StateDir, ErrNotRunning)
	}
	return newCluster(o, r)
}

func newCluster(o Options, r record) (*Cluster, error) {
	c := &Cluster{
		NodeName: r.Name,
		Address:  r.Address,
		StateDir: o.StateDir,
		record:   r,
		images:   append([]string{pauseArchive(o.StateDir)}, o.Images...),
		out:      o.Out,
		keepLogs: o.KeepLogs,
		control:  node.NewClient(o.StateDir),
	}
	var err error
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return nil, fmt.Errorf("read the kubeconfig of cluster %s: %w", r.Name, err)
	}
	// The machine's proxy, if any, does not know the cluster. A client's rate limit would delay
	// requests that a test measures.
	c.config.Proxy = directly
	c.config.QPS = -1
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return nil, fmt.Errorf("make a client of cluster %s: %w", r.Name, err)
	}
	return c, nil
}

// Kubeconfig returns the path of the administrator's kubeconfig, which the machine's root can read.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.StateDir, kubeconfigFile) }

// Kubectl returns the path of the cluster's own version of kubectl.
func (c *Cluster) Kubectl() string { return c.record.Kubectl }

// Runtime returns the name of the component that is the node's container runtime.
func (c *Cluster) Runtime() string { return c.record.Runtime }

// RestConfig returns a copy of the administrator's configuration.
func (c *Cluster) RestConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Client returns the administrator's client.
func (c *Cluster) Client() *kubernetes.Clientset { return c.client }

// Root returns the path of the node's root directory on the machine, valid while the cluster runs.
func (c *Cluster) Root() string { return fmt.Sprintf("/proc/%d/root", c.record.Pid) }

// Down takes the cluster down and removes every trace of the cluster.
func (c *Cluster) Down() error {
	return Down(Options{Name: c.NodeName, StateDir: c.StateDir, KeepLogs: c.keepLogs, Out: c.out})
}

func (r record) write(stateDir string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("record of cluster %s: %w", r.Name, err)
	}
	if err := os.WriteFile(filepath.Join(stateDir, recordFile), content, 0o600); err != nil {
		return fmt.Errorf("record of cluster %s: %w", r.Name, err)
	}
	return nil
}

func readRecord(stateDir string) (record, error) {
	var r record
	content, err := os.ReadFile(filepath.Join(stateDir, recordFile))
	if err != nil {
		return r, fmt.Errorf("record of the cluster: %w", err)
	}
	if err := json.Unmarshal(content, &r); err != nil {
		return r, fmt.Errorf("record of the cluster in %s: %w", stateDir, err)
	}
	return r, nil
}

// lockClusters keeps other processes from starting or taking down clusters while the caller chooses
// addresses. lockClusters locks the directory itself, so that no lock file remains.
func lockClusters(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the state directory: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
		}
		if err := pause(ctx, lockInterval); err != nil {
			return nil, errors.Join(fmt.Errorf("wait for the lock of %s: %w", dir, err), f.Close())
		}
	}
}
