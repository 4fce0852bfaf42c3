// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// probeTimeout bounds one probe.
const probeTimeout = 2 * time.Second

// check probes once.
func (p Probe) check() error {
	switch {
	case p.Socket != "":
		conn, err := net.DialTimeout("unix", p.Socket, probeTimeout)
		if err != nil {
			return err
		}
		return conn.Close()
	case p.URL != "":
		return p.get()
	default:
		return errors.New("the component has no probe")
	}
}

func (p Probe) get() error {
	config, err := p.tlsConfig()
	if err != nil {
		return err
	}
	client := http.Client{
		Timeout:   probeTimeout,
		Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
	}
	response, err := client.Get(p.URL)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", p.URL, response.Status)
	}
	return nil
}

func (p Probe) tlsConfig() (*tls.Config, error) {
	if p.CA == "" {
		// The component on loopback signs its certificate itself.
		return &tls.Config{InsecureSkipVerify: true}, nil // the query contains no secret
	}
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(p.CA)
	if err != nil {
		return nil, err
	}
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s holds no certificate", p.CA)
	}
	pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}, nil
}
