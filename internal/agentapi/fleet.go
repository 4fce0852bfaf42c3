// SPDX-License-Identifier: Apache-2.0

package agentapi

import "time"

// These constants are paths of nri-vgpu-view.
const (
	// ViewPath is the path of the web page.
	ViewPath = "/view/"
	// FleetPath is the path of a Fleet.
	FleetPath = "/view/fleet"
)

// TokenHeader is a header for a client's token. The API server removes the header Authorization
// from requests that it forwards to a Service.
const TokenHeader = "X-Nri-Vgpu-Token" //nolint:gosec // the name of a header

// Fleet contains the data of all agents.
type Fleet struct {
	At        time.Time  `json:"at"`
	Overviews []Overview `json:"overviews"`
	// Errors are the nodes that did not answer.
	Errors []NodeError `json:"errors,omitempty"`
}

// NodeError is the reason that a node did not answer.
type NodeError struct {
	// Node is empty if the agents could not be listed.
	Node  string `json:"node,omitempty"`
	Error string `json:"error"`
}
