// Package node runs one Kubernetes node in namespaces of its own: its first
// process, the supervisor, is pid 1 there, builds the node's file system and
// network, starts the components and answers on a control socket. When it
// ends, the kernel ends everything else of the node with it: processes,
// mounts, network.
package node

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// A Spec says what the supervisor is to build; it is handed over as a file.
type Spec struct {
	// Name is the node's host name.
	Name string `json:"name"`
	// StateDir is the one directory on the machine that the node writes to. It
	// has the same path inside the node.
	StateDir string `json:"stateDir"`
	// Address is the node's own address with its prefix length, and Services
	// the address at which the API server is reached inside the cluster; empty
	// where the API server is on another node, to which Routes lead.
	Address  string  `json:"address"`
	Services string  `json:"services,omitempty"`
	Routes   []Route `json:"routes,omitempty"`
	// Clear are paths at which the node must not see what the machine has.
	Clear []string `json:"clear"`
	// Tree is a directory whose content is copied over the node's root.
	Tree string `json:"tree"`
	// Binds are files and directories of the machine that the node has at
	// another place.
	Binds []Bind `json:"binds"`
	// Cgroup is the node's cgroup below the root of each hierarchy.
	Cgroup string `json:"cgroup"`
	// Setup are commands that run, in order, before any component.
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

// A Component is a program that the supervisor starts and watches. It is not
// restarted when it ends: a test is to see that.
type Component struct {
	Name string   `json:"name"`
	Args []string `json:"args"`
	// After names the components that must be ready before this one starts.
	After []string `json:"after"`
	Ready Probe    `json:"ready"`
	// Restart has a component start anew that ends by itself, as kubelet does
	// with the control plane's pods. One that is stopped or killed stays so.
	Restart bool `json:"restart,omitempty"`
}

// A Probe tells when a component serves: Socket accepts connections, or URL is
// answered with 200.
type Probe struct {
	Socket string `json:"socket,omitempty"`
	URL    string `json:"url,omitempty"`
	// CA, Cert and Key are files for https.
	CA   string `json:"ca,omitempty"`
	Cert string `json:"cert,omitempty"`
	Key  string `json:"key,omitempty"`
}

// State is where a component is in its life.
type State string

// The states of a component.
const (
	Waiting  State = "waiting"  // for other components
	Starting State = "starting" // runs, does not serve yet
	Ready    State = "ready"    // has served since it was started
	Exited   State = "exited"   // ended by itself or by a signal
	Stopped  State = "stopped"  // ended on request
)

// Status is what the supervisor knows of a component.
type Status struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// Pid is the process in the node's pid namespace, 0 when none runs.
	Pid int `json:"pid"`
	// Since is when the state was reached.
	Since time.Time `json:"since"`
	// Detail says how a component ended.
	Detail string `json:"detail,omitempty"`
}

// Paths below the state directory that the supervisor and its callers share.
const (
	specFile    = "spec.json"
	controlFile = "control.sock"
	logDir      = "logs"
)

// LogFile is where a component's output goes.
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
