// SPDX-License-Identifier: Apache-2.0

// Package node runs one Kubernetes node in separate namespaces. The node's first process, the
// supervisor, is pid 1 in these namespaces. The supervisor builds the node's file system and
// network, starts the components and answers on a control socket. When the supervisor ends, the
// kernel removes all other parts of the node: processes, mounts, network.
package node

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// A Spec describes the node that the supervisor builds. The supervisor reads the specification from
// a file.
type Spec struct {
	// Name is the node's host name.
	Name string `json:"name"`
	// StateDir is the only directory on the machine to which the node writes. StateDir has the same
	// path inside the node.
	StateDir string `json:"stateDir"`
	// Address is the node's own address with its prefix length, and Services is the address of the
	// API server inside the cluster. Services is empty if the API server is on another node, to
	// which Routes lead.
	Address  string  `json:"address"`
	Services string  `json:"services,omitempty"`
	Routes   []Route `json:"routes,omitempty"`
	// Clear are paths at which the node must not see the machine's files.
	Clear []string `json:"clear"`
	// Tree is a directory whose content the supervisor copies over the node's root.
	Tree string `json:"tree"`
	// Binds are files and directories of the machine that appear at another path in the node.
	Binds []Bind `json:"binds"`
	// Cgroup is the node's cgroup below the root of each hierarchy.
	Cgroup string `json:"cgroup"`
	// Setup lists commands that run, in order, before any component.
	Setup      [][]string  `json:"setup"`
	Components []Component `json:"components"`
}

// A Route leads to a Destination, with its prefix length, by a Gateway.
type Route struct {
	Destination string `json:"destination"`
	Gateway     string `json:"gateway"`
}

// A Bind makes Source of the machine appear at Target in the node.
type Bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly"`
}

// A Component is a program that the supervisor starts and watches. The supervisor does not restart
// an ended component unless Restart is set, because tests should see the end.
type Component struct {
	Name string   `json:"name"`
	Args []string `json:"args"`
	// After names the components that must be ready before this component starts.
	After []string `json:"after"`
	Ready Probe    `json:"ready"`
	// Restart restarts a component that ends by itself, as kubelet restarts the control plane's
	// pods. A stopped or killed component stays stopped.
	Restart bool `json:"restart,omitempty"`
}

// A Probe checks whether a component serves: Socket accepts connections, or URL answers with 200.
type Probe struct {
	Socket string `json:"socket,omitempty"`
	URL    string `json:"url,omitempty"`
	// CA, Cert and Key are files for https.
	CA   string `json:"ca,omitempty"`
	Cert string `json:"cert,omitempty"`
	Key  string `json:"key,omitempty"`
}

// State is the state of a component.
type State string

// These are the states of a component.
const (
	Waiting  State = "waiting"  // for other components
	Starting State = "starting" // runs, but does not serve yet
	Ready    State = "ready"    // has served since its start
	Exited   State = "exited"   // ended by itself or by a signal
	Stopped  State = "stopped"  // ended on request
)

// Status is the supervisor's knowledge of a component.
type Status struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// Pid is the process in the node's pid namespace, or 0 if no process runs.
	Pid int `json:"pid"`
	// Since is the time at which the component reached the state.
	Since time.Time `json:"since"`
	// Detail describes how a component ended.
	Detail string `json:"detail,omitempty"`
}

// The supervisor and its callers share these paths below the state directory.
const (
	specFile    = "spec.json"
	controlFile = "control.sock"
	logDir      = "logs"
)

// LogFile returns the path of a component's log.
func LogFile(stateDir, component string) string {
	return filepath.Join(stateDir, logDir, component+".log")
}

// Write stores the specification in its state directory.
func (s Spec) Write() error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the node's specification: %w", err)
	}
	if err := os.WriteFile(filepath.Join(s.StateDir, specFile), content, 0o600); err != nil {
		return fmt.Errorf("write the node's specification: %w", err)
	}
	return nil
}

func readSpec(stateDir string) (Spec, error) {
	var s Spec
	content, err := os.ReadFile(filepath.Join(stateDir, specFile))
	if err != nil {
		return s, fmt.Errorf("read the node's specification: %w", err)
	}
	if err := json.Unmarshal(content, &s); err != nil {
		return s, fmt.Errorf("decode the node's specification: %w", err)
	}
	return s, nil
}
